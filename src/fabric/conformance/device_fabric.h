// A fabric for the suite whose tensors are all in the memory of a stand-in device: what works with
// the host's memory must work with a device's.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "device/conformance/standin.h"
#include "fabric/conformance/wrapped_fabric.h"

namespace tensorbus::fabric {

// A device of a driver that has just started, and its memory: tests see it where the stand-in keeps
// it, fabrics where a device has it, and cannot touch it there.
class TestDevice {
 public:
  explicit TestDevice(const device::Standin::Variables& variables)
      : standin_(variables), bench_(standin_, standin_.functions()) {}

  device::Device& device() { return bench_.device(); }
  device::StandinBench& bench() { return bench_; }
  std::byte* allocate(std::size_t bytes) {
    std::byte* const on_device = bench_.allocate(bytes);
    std::byte* const seen = standin_.shadow(on_device);
    memory_[seen] = {on_device, bytes};
    return seen;
  }
  // What allocate() gave. No fabric uses it any more.
  void free(std::byte* seen) {
    const auto found = memory_.find(seen);
    standin_.functions().cuMemFree(reinterpret_cast<device::cuda::Pointer>(found->second.first));
    memory_.erase(found);
  }
  // The same tensor for fabrics; one that this device does not have stays as it is.
  void move(TensorView& tensor) const {
    const auto after = memory_.upper_bound(tensor.data);
    if (tensor.empty() || after == memory_.begin()) return;
    const auto& [seen, block] = *std::prev(after);
    const auto offset = static_cast<std::size_t>(tensor.data - seen);
    if (offset >= block.bytes) return;
    tensor.data = block.first + offset;
    tensor.device = 0;
  }

 private:
  struct Memory {
    std::byte* first = nullptr;
    std::size_t bytes = 0;
  };

  const device::Standin standin_;
  device::StandinBench bench_;
  std::map<const std::byte*, Memory> memory_;
};

class DeviceFabric final : public WrappedFabric {
 public:
  DeviceFabric(std::unique_ptr<Fabric> fabric, std::shared_ptr<const TestDevice> device)
      : WrappedFabric(std::move(fabric)), device_(std::move(device)) {}

  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                 std::shared_ptr<const Lender> lender) override {
    std::vector<TensorView> moved(tensors.begin(), tensors.end());
    for (TensorView& tensor : moved) device_->move(tensor);
    return inner().expose(moved, std::move(gate), std::move(lender));
  }
  void read(Read read, OpId id, Deadline deadline) override {
    for (TensorView& tensor : read.targets) device_->move(tensor);
    inner().read(std::move(read), id, deadline);
  }

 private:
  const std::shared_ptr<const TestDevice> device_;
};

}  // namespace tensorbus::fabric
