// What a driver does with a few copies: for who wants to know whether a machine's GPUs can be used.
#pragma once

#include <string>
#include <vector>

#include "device/core/device.h"
#include "device/cuda/library.h"
#include "tensorbus/deadline.h"

namespace tensorbus::device::cuda {

struct Check {
  std::string name;
  Status status;
};

// Makes a context on the device and uses some MiB of its memory. The driver has been initialised.
// Every check has its line, also one that could not be made or was not over at the deadline.
std::vector<Check> check_device(const Functions& functions, Id id, Deadline deadline);

}  // namespace tensorbus::device::cuda
