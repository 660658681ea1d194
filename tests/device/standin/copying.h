// Copies as a careless caller should fear them: a pinned target is spoilt when the copy is issued,
// and the bytes come later, in two halves in any order.
#pragma once

#include "driver.h"

namespace tensorbus::device::cuda {

struct Rows {
  Pointer from = 0;
  std::size_t from_pitch = 0;
  Pointer to = 0;
  std::size_t to_pitch = 0;
  std::size_t width = 0;
  std::size_t height = 1;
};

// Pageable memory as documented at its worst: a source is read before the call returns, a target is
// complete when the call returns.
Result copy(ContextState& context, Stream stream, const Rows& rows);

inline Rows one_row(Pointer to, Pointer from, std::size_t bytes) {
  return {from, bytes, to, bytes, bytes, 1};
}

}  // namespace tensorbus::device::cuda
