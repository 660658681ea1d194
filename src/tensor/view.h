// A tensor in someone else's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensorbus/dtype.h"
#include "tensorbus/layout.h"

namespace tensorbus {

// Everything is borrowed. `data` is the first element, null if there are none. Strides are in
// elements.
struct TensorView {
  std::byte* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> strides;
  bool read_only = false;
  bool elsewhere = false;  // `data` is an address in another process

  bool empty() const noexcept;
};

// Several elements share an address: such a tensor can be read but not written.
bool repeats_itself(const TensorView& view) noexcept;

}  // namespace tensorbus
