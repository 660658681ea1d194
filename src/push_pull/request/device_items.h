// What requests move of tensors on devices: dense copies in pinned host memory stand in for them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "device/core/copier.h"
#include "device/cuda/device.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::push_pull {

// Any thread may call.
class DeviceItems {
 public:
  explicit DeviceItems(device::Copiers::Open open = &device::cuda::open)
      : copiers_(std::move(open)) {}

  // Items as a worker takes them. The views, and their shapes, are borrowed from what was given.
  struct Stand {
    std::vector<Item> items;
    std::vector<std::shared_ptr<std::byte>> memory;
    std::vector<std::unique_ptr<Shape>> strides;  // of the copies
  };
  // Of pushes, which are copied when it returns. What was to be written to them has been.
  // Error(timeout) if a device has not copied by the deadline.
  Stand of_pushes(std::span<const Item> pushes, Deadline deadline);
  // Of pulls, which are to be stored.
  std::shared_ptr<const Stand> of_pulls(std::span<const Item> pulls);

  // The pulls of a request wait for its answers, or nobody does any more.
  void keep(Handler first, std::span<const Item> pulls, std::shared_ptr<const Stand> stand);
  bool keeps_any() const noexcept { return kept_.load(std::memory_order_relaxed) > 0; }
  void forget(Handler first);
  // When all have answered: copies what came to the pulls, and returns when it is there.
  void store(Handler first, Deadline deadline);

 private:
  struct Kept {
    std::vector<std::vector<device::Block>> blocks;  // by item; of the host's there are none
    std::vector<device::Copier*> copiers;
    std::shared_ptr<const Stand> stand;
  };

  Stand stand_for(std::span<const Item> items);

  device::Copiers copiers_;
  Mutex mutex_;
  std::map<Handler, Kept> open_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> kept_ = 0;
};

}  // namespace tensorbus::push_pull
