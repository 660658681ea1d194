// Puts a version where readers find it, and notes what it changes: converts, writes and compares in
// one pass over memory.
#pragma once

#include <cstddef>
#include <span>

#include "copy/crew.h"
#include "delta/change/bitmap.h"
#include "tensor/view.h"

namespace tensorbus::delta {

struct Comparison {
  TensorView from;                      // any strides
  TensorView to;                        // dense, of the same shape; its type may be another
  const std::byte* previous = nullptr;  // the version before, dense and of the type of `to`
  Bitmap* changes = nullptr;            // of as many elements; gets what differs from `previous`
};

// `previous` may be where `to` is: then the version before is overwritten. Nothing else shares
// memory. Error, before anything is written, if shapes, types or sizes do not fit.
void diff_each(std::span<const Comparison> all, copy::Crew& crew);

}  // namespace tensorbus::delta
