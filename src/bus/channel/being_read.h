// Bytes on their way to this rank, for people who ask.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorbus/layout.h"

namespace tensorbus::bus {

struct BeingRead {
  std::int64_t version = 0;  // 0: of a batch without versions
  std::vector<Rank> from{};
};

}  // namespace tensorbus::bus
