// Copies of whole tensors out of the memory of devices, by the worker that has them.
#pragma once

#include <span>

#include "device/core/copier.h"
#include "tensor/view.h"
#include "tensorbus/deadline.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus {

// Runs a program that binds both sides. What keeps its type is copied by the device straight to its
// target, in the host's memory; what is cast passes through pinned scratch, and what lies in the
// host's memory is copied meanwhile. The caller knows that what was to be written to the sources
// has been. Error(timeout) if a device has not copied by the deadline. However the call ends, no
// device is at the memory.
void copy_from_devices(const plan::Program& program, std::span<const TensorView> from,
                       std::span<const TensorView> to, device::Copiers& copiers, Deadline deadline);

}  // namespace tensorbus::bus
