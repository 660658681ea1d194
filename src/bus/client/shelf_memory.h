// The memory of a shelf at the worker that fills it: a copy of every tensor for every version that
// is kept, side by side in one segment that the pool uses for nothing else, now or later: an agent
// may serve it when the worker has done with it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bus/client/whole_copy.h"
#include "copy/crew.h"
#include "delta/change/bitmap.h"
#include "fabric/core/pool.h"
#include "fabric/core/region.h"
#include "tensor/view.h"

namespace tensorbus::bus {

// The type in which a shelf that is to have type `wanted` keeps a tensor: a shelf only narrows
// floating point.
Dtype shelf_dtype(Dtype own, std::optional<Dtype> wanted) noexcept;

// Calls of fill() take turns.
class ShelfMemory {
 public:
  // `delta`: with memory for what a version changes.
  ShelfMemory(fabric::Forms forms, std::size_t keep, bool delta, fabric::Pool& pool);

  // The tensors of the first slot, of the second, ...; then, for deltas, for each tensor a bit for
  // each element, in words.
  const std::vector<TensorView>& tensors() const noexcept { return tensors_; }
  const std::shared_ptr<std::byte>& segment() const noexcept { return segment_; }
  // Copies tensors of the same shapes into a slot; those on devices as copy_from_devices().
  // `previous`: the slot of the version before, to compare with, if all tensors are in memory of the
  // host; what differs is written down for the agent.
  void fill(std::size_t slot, std::optional<std::size_t> previous, std::span<const TensorView> from,
            copy::Crew& crew, device::Copiers& copiers, Deadline deadline);

 private:
  std::span<const TensorView> tensors_of(std::size_t slot) const {
    return std::span(tensors_).subspan(slot * forms_.size(), forms_.size());
  }
  // Devices copy to memory that is pinned: all slots are, once, when a tensor on a device comes.
  void pin_for(std::span<const TensorView> from, device::Copiers& copiers);
  void compare(std::size_t slot, std::size_t previous, std::span<const TensorView> from,
               copy::Crew& crew);

  const fabric::Forms forms_;  // of one slot
  const std::size_t keep_;
  std::shared_ptr<std::byte> segment_;
  std::span<std::byte> slots_;                // in the segment
  std::shared_ptr<const device::Pin> pin_{};  // null: no device has copied there
  std::vector<TensorView> tensors_;
  fabric::Forms words_;  // of bits, if there are any
  delta::Changes changes_;
  WholeCopy copies_;
};

}  // namespace tensorbus::bus
