// CUDA devices.
#pragma once

#include "device/cuda/engine.h"

namespace tensorbus::device::cuda {

struct Options {
  std::size_t pinned_bytes = std::size_t{256} << 20;  // of host memory, for windows of ours
};

// A device of its own, with its thread; for tests, and for open(). Error(unsupported) if there is
// no such device.
std::unique_ptr<device::Device> make(const Functions& functions, Id id, const Options& options);

// A device of this process, made on the first call and never destroyed: at exit the driver goes
// before us. Error(unsupported) if the driver or the device cannot be used.
device::Device& open(Id id);

// The device whose memory an address is of. Error(unsupported) if the driver cannot be used,
// Error(invalid_argument) for memory that CUDA manages, or that is none of a device's.
Id device_of(const void* address);

// The devices that a driver has; makes no context. The driver has been initialised.
std::vector<Info> list(const Functions& functions);

}  // namespace tensorbus::device::cuda
