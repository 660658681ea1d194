// What one user of a device copies with: a queue of its own, and pinned host memory.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "device/core/device.h"

namespace tensorbus::device {

// Any thread may call. The device outlives the copier.
class Copier {
 public:
  explicit Copier(Device& device);

  Device& device() noexcept { return device_; }
  Queue& queue() noexcept { return *queue_; }
  // Host memory of at least so many bytes, pinned if the device can. Memory that was given back,
  // which dropping it does, is used again: pinning costs more than copying.
  std::shared_ptr<std::byte> scratch(std::size_t bytes);

 private:
  class Shelf;

  Device& device_;
  const std::unique_ptr<Queue> queue_;
  const std::shared_ptr<Shelf> shelf_;
};

// The copiers of one user, opened when a tensor of their device first comes. Any thread may call.
class Copiers {
 public:
  using Open = std::function<Device&(Id)>;
  // Told of the descriptor of each new queue, which is readable when a copy has ended.
  using Opened = std::function<void(int fd)>;

  explicit Copiers(Open open, Opened opened = nullptr)
      : open_(std::move(open)), opened_(std::move(opened)) {}

  // Error(unsupported) if the device cannot be used.
  Copier& of(Id id);

 private:
  const Open open_;
  const Opened opened_;
  Mutex mutex_;
  std::map<Id, std::unique_ptr<Copier>> copiers_ GUARDED_BY(mutex_);
};

}  // namespace tensorbus::device
