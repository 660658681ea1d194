// Tensors of any strides as bytes in a row, and back.
#pragma once

#include <cstddef>

#include "base/prefetch.h"
#include "tensorbus/tensor.h"

namespace tensorbus::push_pull {

std::size_t bytes_of(const TensorView& tensor) noexcept;
// Its elements lie in a row, in order.
bool is_dense(const TensorView& tensor) noexcept;

// Asks for the first lines of memory that is soon read or written and that another core has had.
inline void fetch_early(const std::byte* memory, std::size_t bytes, bool to_write) noexcept {
  for (std::size_t at = 0; at < bytes && at < 256; at += 64) {
    to_write ? prefetch_to_write(memory + at) : prefetch_to_read(memory + at);
  }
}

// bytes_of(tensor) bytes each.
void pack(const TensorView& tensor, std::byte* to);
void unpack(const std::byte* from, const TensorView& tensor);

}  // namespace tensorbus::push_pull
