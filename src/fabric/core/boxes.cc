#include "fabric/core/boxes.h"

#include "base/refuse.h"
#include "tensor/checked.h"

namespace tensorbus::fabric {
namespace {

using tensorbus::to_string;

void check_box(const TensorBox& box, const Forms& source) {
  if (box.tensor >= source.size()) {
    refuse("a box of tensor " + std::to_string(box.tensor) + ", there are " +
           std::to_string(source.size()));
  }
  const Shape& whole = source[box.tensor].shape;
  bool inside = box.start.size() == whole.size() && box.shape.size() == whole.size();
  for (std::size_t dim = 0; inside && dim < whole.size(); ++dim) {
    inside = box.start[dim] >= 0 && box.shape[dim] >= 0 && box.shape[dim] <= whole[dim] &&
             box.start[dim] <= whole[dim] - box.shape[dim];
  }
  if (inside) return;
  refuse("a box of shape " + to_string(box.shape) + " that begins at " + to_string(box.start) +
         " leads outside of tensor " + std::to_string(box.tensor) + ", which is " +
         to_string(whole));
}

// One box more, packed behind the others.
void append(plan::Stream& stream, std::size_t at, const TensorBox& box, const TensorForm& form,
            Dtype target) {
  if (!castable(form.dtype, target)) {
    refuse("tensor " + std::to_string(box.tensor) + " cannot be converted from " +
           std::string(to_string(form.dtype)) + " to " + std::string(to_string(target)));
  }
  const std::int64_t elements = element_count(box.shape);
  const plan::Types types{form.dtype, target};
  plan::Part part{box.tensor, at, types, form.dtype, form.shape, box.shape, {}, elements, 0};
  for (std::size_t dim = 0; dim < box.shape.size(); ++dim) {
    part.dims.push_back({{box.start[dim], 0, box.shape[dim]}});
  }
  part.wire_offset = ceil_divide(stream.wire_bytes, plan::part_alignment) * plan::part_alignment;
  const std::int64_t bytes =
      checked_multiply(elements, static_cast<std::int64_t>(item_bytes(form.dtype)), "a region");
  stream.wire_bytes = checked_add(part.wire_offset, bytes, "a region");
  stream.payload_bytes += bytes;
  stream.parts.push_back(std::move(part));
}

}  // namespace

plan::Stream box_stream(const Forms& source, std::span<const TensorBox> boxes,
                        std::span<const Dtype> target, std::int64_t chunk_bytes) {
  if (target.size() != boxes.size()) {
    refuse(std::to_string(boxes.size()) + " boxes were given " + std::to_string(target.size()) +
           " targets");
  }
  plan::Stream stream;
  stream.source.ranks = {0};
  stream.chunk_bytes = chunk_bytes;
  for (std::size_t at = 0; at < boxes.size(); ++at) {
    check_box(boxes[at], source);
    if (element_count(boxes[at].shape) == 0) continue;
    append(stream, at, boxes[at], source[boxes[at].tensor], target[at]);
  }
  return stream;
}

plan::Stream box_stream(const Forms& source, std::span<const TensorBox> boxes) {
  std::vector<Dtype> types;
  for (const TensorBox& box : boxes) {
    check_box(box, source);
    types.push_back(source[box.tensor].dtype);
  }
  return box_stream(source, boxes, types);
}

}  // namespace tensorbus::fabric
