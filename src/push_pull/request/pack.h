// Tensors of any strides as bytes in a row, and back.
#pragma once

#include <cstddef>

#include "copy/prefetch.h"
#include "tensorbus/tensor.h"

namespace tensorbus::push_pull {

// The loop's mutex is let go for copies that are longer.
inline constexpr std::size_t long_copy = 32 * 1024;

struct Measure {
  std::size_t bytes = 0;
  bool dense = true;  // its elements lie in a row, in order
};

inline Measure measure(const TensorView& tensor) noexcept {
  std::size_t count = 1;
  bool dense = true;
  for (std::size_t dim = tensor.shape.size(); dim-- > 0;) {
    const auto extent = static_cast<std::size_t>(tensor.shape[dim]);
    dense = dense && (extent == 1 || static_cast<std::size_t>(tensor.strides[dim]) == count);
    count *= extent;
  }
  return {count * item_bytes(tensor.dtype), dense || count == 0};
}
inline std::size_t bytes_of(const TensorView& tensor) noexcept { return measure(tensor).bytes; }
inline bool is_dense(const TensorView& tensor) noexcept { return measure(tensor).dense; }

// Asks for the first lines of memory that is soon read or written and that another core has had.
inline void fetch_early(const std::byte* memory, std::size_t bytes, bool to_write) noexcept {
  for (std::size_t at = 0; at < bytes && at < 256; at += 64) {
    to_write ? prefetch_to_write(memory + at) : prefetch_to_read(memory + at);
  }
}

// bytes_of(tensor) bytes each.
void pack(const TensorView& tensor, const Measure& measured, std::byte* to);
inline void pack(const TensorView& tensor, std::byte* to) { pack(tensor, measure(tensor), to); }
void unpack(const std::byte* from, const TensorView& tensor);

}  // namespace tensorbus::push_pull
