// Blocks as the copies that the driver knows.
#pragma once

#include <vector>

#include "device/core/device.h"
#include "device/cuda/abi.h"

namespace tensorbus::device::cuda {

// One copy for all planes if the planes lie like rows, else one for each plane, and one for each
// row where the driver cannot have the pitch: below the row's length, negative, or over `longest`.
// A row that is longer than `longest` goes in parts.
std::vector<Memcpy2D> copies_of(const Block& block, std::size_t longest);

}  // namespace tensorbus::device::cuda
