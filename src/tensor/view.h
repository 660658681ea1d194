// What is asked of a tensor in someone else's memory.
#pragma once

#include "tensorbus/tensor.h"

namespace tensorbus {

// Several elements share an address: such a tensor can be read but not written.
bool repeats_itself(const TensorView& view) noexcept;

// Stands for a tensor that has no memory here.
TensorView no_tensor() noexcept;

}  // namespace tensorbus
