// A tensor in someone else's memory, and its form without the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensorbus/dtype.h"
#include "tensorbus/layout.h"

#pragma GCC visibility push(default)

namespace tensorbus {

// Of a tensor that lies in the host's memory.
inline constexpr std::int32_t host_memory = -1;

// Everything is borrowed. `data` is the first element, null if there are none. Strides are in
// elements.
struct TensorView {
  std::byte* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> strides;
  bool read_only = false;
  bool elsewhere = false;  // `data` is an address in another process
  // The CUDA device that `data` is an address of, as this process numbers devices.
  std::int32_t device = host_memory;

  bool empty() const noexcept;
  bool on_device() const noexcept { return device != host_memory; }
};

struct TensorForm {
  Dtype dtype = Dtype::float32;
  Shape shape;
  Shape strides;  // in elements

  friend bool operator==(const TensorForm&, const TensorForm&) = default;
};

}  // namespace tensorbus

#pragma GCC visibility pop
