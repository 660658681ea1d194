// What a reader holds in its tensors, and how it gets on with patches to it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bus/patching/bound_stream.h"
#include "delta/patch/patch.h"

namespace tensorbus::bus {

// Samples of what a reader holds: whether somebody else has written to it.
class Canaries {
 public:
  // Of some of the tensors, others for each salt: all of these are looked at in time.
  void take(std::span<const TensorView> tensors, std::uint64_t salt);
  // The first tensor that is not as it was; nothing: none is known to be.
  std::optional<std::size_t> first_changed(std::span<const TensorView> tensors) const;

 private:
  std::vector<std::size_t> watched_;  // positions
  std::vector<std::uint64_t> sums_;
  std::uint64_t salt_ = 0;
};

struct HeldState {
  // Nothing from the first byte of a dense read, or of patches that are applied, to the last. It
  // lives in memory of the agent only: who restarts holds nothing.
  std::optional<delta::HeldContent> content;
  Canaries canaries;  // of that
  // The pull that runs has begun to write to the tensors.
  bool touched = false;
  // The reader's streams as its tensors are now; null until they are needed.
  using Streams = std::vector<std::unique_ptr<const BoundStream>>;
  std::shared_ptr<const Streams> streams;
  // How long things take, against what is expected; nothing: not measured yet.
  std::optional<double> rate;  // bytes a second, of dense reads
  std::optional<double> apply;
};

}  // namespace tensorbus::bus
