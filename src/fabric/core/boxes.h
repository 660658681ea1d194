// Boxes of a region's tensors, and how they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fabric/core/region.h"

namespace tensorbus::fabric {

// The box of a region's tensor that begins at `start`.
struct TensorBox {
  std::size_t tensor = 0;
  Shape start;
  Shape shape;
  friend bool operator==(const TensorBox&, const TensorBox&) = default;
};

// Boxes of a region's tensors, each into a tensor of its shape; types as those of whole_stream().
// Error(invalid_argument) for a box that leads outside of its tensor.
plan::Stream box_stream(const Forms& source, std::span<const TensorBox> boxes,
                        std::span<const Dtype> target,
                        std::int64_t chunk_bytes = plan::default_chunk_bytes);
// For targets of the tensors' own types: what an owner packs.
plan::Stream box_stream(const Forms& source, std::span<const TensorBox> boxes);

}  // namespace tensorbus::fabric
