// What a reader holds in its tensors, and how it gets on with patches to it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bus/patching/bound_stream.h"
#include "delta/patch/patch.h"

namespace tensorbus::bus {

struct HeldState {
  // Nothing from the first byte of a dense read, or of patches that are applied, to the last. It
  // lives in memory of the agent only: who restarts holds nothing.
  std::optional<delta::HeldContent> content;
  // The reader's streams as its tensors are now; empty until they are needed.
  std::vector<std::unique_ptr<const BoundStream>> streams;
  // How long things take, against what is expected; nothing: not measured yet.
  std::optional<double> rate;  // bytes a second, of dense reads
  std::optional<double> apply;
};

}  // namespace tensorbus::bus
