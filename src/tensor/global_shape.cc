#include "tensor/global_shape.h"

#include <string>

#include "base/overloaded.h"
#include "tensorbus/status.h"

namespace tensorbus {
namespace {

// The tensor dimension that a placement shards, or none.
std::optional<std::size_t> sharded_dim(const Placement& placement, std::size_t dims) {
  using Dim = std::optional<std::size_t>;
  return std::visit(
      Overloaded{
          [&](const OneOf<Shard, StridedShard> auto& shard) -> Dim {
            const std::int64_t dim = shard.dim;
            return static_cast<std::size_t>(dim < 0 ? dim + static_cast<std::int64_t>(dims) : dim);
          },
          [](const OneOf<Replicate, Partial> auto&) -> Dim { return std::nullopt; },
      },
      placement);
}

// The shards of a dimension are those of the ranks that stand at 0 in every mesh dimension that
// does not shard it; the sizes of these shards add up to the size of the dimension.
std::int64_t size_of(std::size_t dim, const Layout& layout, std::span<const Shape> locals) {
  std::int64_t size = 0;
  for (std::size_t index = 0; index < locals.size(); ++index) {
    const auto coordinates = layout.mesh().coordinates_of(index);
    bool counts = true;
    for (std::size_t axis = 0; axis < coordinates.size(); ++axis) {
      const auto sharded = sharded_dim(layout.placements()[axis], locals[index].size());
      if (coordinates[axis] != 0 && sharded != dim) counts = false;
    }
    if (counts) size += locals[index][dim];
  }
  return size;
}

void check_count(const Layout& layout, std::size_t locals) {
  if (locals == layout.mesh().size()) return;
  throw Error(Code::invalid_argument, "a mesh of " + std::to_string(layout.mesh().size()) +
                                          " ranks was given " + std::to_string(locals) +
                                          " local tensors");
}

}  // namespace

Shape global_shape(const Layout& layout, std::span<const Shape> locals) {
  check_count(layout, locals.size());
  const std::vector<Rank>& ranks = layout.mesh().ranks();
  const std::size_t dims = locals.front().size();
  for (std::size_t index = 0; index < locals.size(); ++index) {
    if (locals[index].size() == dims) continue;
    throw Error(Code::invalid_argument,
                "rank " + std::to_string(ranks[index]) + " has a tensor with " +
                    std::to_string(locals[index].size()) + " dimensions, rank " +
                    std::to_string(ranks.front()) + " one with " + std::to_string(dims));
  }
  Shape shape(dims);
  for (std::size_t dim = 0; dim < dims; ++dim) shape[dim] = size_of(dim, layout, locals);
  check_local_shapes(layout, shape, locals);
  return shape;
}

void check_local_shapes(const Layout& layout, const Shape& shape, std::span<const Shape> locals) {
  check_count(layout, locals.size());
  for (std::size_t index = 0; index < locals.size(); ++index) {
    const Rank rank = layout.mesh().ranks()[index];
    const Shape expected = layout.local_shape(shape, rank);
    if (locals[index] == expected) continue;
    throw Error(Code::invalid_argument,
                "rank " + std::to_string(rank) + " has a tensor of shape " +
                    to_string(locals[index]) + ", expected " + to_string(expected) +
                    ", its share of " + to_string(shape) + " in the layout " + to_string(layout));
  }
}

}  // namespace tensorbus
