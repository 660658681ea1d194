// What a command waits for, for people who ask.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bus/channel/being_read.h"
#include "tensorbus/layout.h"

namespace tensorbus::bus {

struct Awaited {
  std::string what;         // empty: nothing
  std::vector<Rank> ranks;  // that have to do something first, as far as they are known
  std::optional<BeingRead> read{};
};

}  // namespace tensorbus::bus
