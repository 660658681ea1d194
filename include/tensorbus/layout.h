// How a tensor is spread over ranks: a mesh of ranks and one placement per mesh dimension, with
// exactly the rules of torch's DTensor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)

namespace tensorbus {

using Rank = std::int64_t;
using Shape = std::vector<std::int64_t>;

// The number of elements; Error if a size is negative or the sizes other than 0 multiply to more
// than 2^60.
std::int64_t element_count(const Shape& shape);

std::string to_string(const Shape& shape);

// Ranks in row-major order of a shape. Immutable; a copy shares the ranks.
class Mesh {
 public:
  // Without `ranks` they are 0, 1, ... A mesh dimension has at least one rank; ranks differ.
  explicit Mesh(Shape shape, std::optional<std::vector<Rank>> ranks = std::nullopt);

  const Shape& shape() const noexcept { return data_->shape; }
  const std::vector<Rank>& ranks() const noexcept { return data_->ranks; }
  std::size_t size() const noexcept { return data_->ranks.size(); }
  std::size_t dims() const noexcept { return data_->shape.size(); }

  bool contains(Rank rank) const noexcept { return find(rank).has_value(); }
  // The position of a rank in row-major order; Error if it is not in the mesh.
  std::size_t index_of(Rank rank) const;
  std::vector<std::int64_t> coordinates_of(std::size_t index) const;

  friend bool operator==(const Mesh& a, const Mesh& b) {
    return a.data_ == b.data_ || (a.shape() == b.shape() && a.ranks() == b.ranks());
  }

 private:
  struct Data {
    Shape shape;
    std::vector<Rank> ranks;
    // Sorted by rank; empty when rank and position are equal.
    std::vector<std::pair<Rank, std::size_t>> positions;
  };
  std::optional<std::size_t> find(Rank rank) const noexcept;

  std::shared_ptr<const Data> data_;
};

enum class ReduceOp : std::uint8_t { sum, avg, max, min, product };
std::string_view to_string(ReduceOp op) noexcept;
ReduceOp parse_reduce_op(std::string_view name);

// A negative `dim` counts from the last dimension of the tensor.
struct Replicate {
  friend bool operator==(const Replicate&, const Replicate&) = default;
};
struct Shard {
  std::int64_t dim = 0;
  friend bool operator==(const Shard&, const Shard&) = default;
};
// Cuts the dimension into `split_factor` pieces, each of them over the ranks of the mesh dimension:
// a rank holds one part of every piece. torch calls that _StridedShard.
struct StridedShard {
  std::int64_t dim = 0;
  std::int64_t split_factor = 1;
  friend bool operator==(const StridedShard&, const StridedShard&) = default;
};
// Each rank of the mesh dimension holds a value of every element; `op` over them is the tensor.
struct Partial {
  ReduceOp op = ReduceOp::sum;
  friend bool operator==(const Partial&, const Partial&) = default;
};
using Placement = std::variant<Replicate, Shard, StridedShard, Partial>;
std::string to_string(const Placement& placement);

struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const noexcept { return end - begin; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

// Indices of one tensor dimension: ascending, disjoint, not adjacent, none empty. The local index
// of an element is its position in them.
using Intervals = std::vector<Interval>;
std::int64_t size(const Intervals& intervals) noexcept;

// What a rank holds of a tensor: the product over the dimensions.
struct Holding {
  std::vector<Intervals> dims;

  Shape local_shape() const;
  friend bool operator==(const Holding&, const Holding&) = default;
};

class Layout {
 public:
  // One placement per mesh dimension; sum and avg are the only reductions that may be mixed.
  Layout(Mesh mesh, std::vector<Placement> placements);

  const Mesh& mesh() const noexcept { return mesh_; }
  const std::vector<Placement>& placements() const noexcept { return placements_; }
  bool has_partial() const noexcept;

  // Error if the rank is not in the mesh or a placement shards a dimension the shape does not have.
  Holding holding(const Shape& shape, Rank rank) const;
  Shape local_shape(const Shape& shape, Rank rank) const;

  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  Mesh mesh_;
  std::vector<Placement> placements_;
};

// The text form of a layout: SHAPE:P,...[@ranks], for example "4x2:S0,R" or "2:P.avg@8,9" or
// "2x2:SS0/2,S0@4-7". P is R, S<dim>, SS<dim>/<split factor> or P[.op].
Layout parse_layout(std::string_view text);
std::string to_string(const Layout& layout);
// "8192x8192"; the shape of a tensor without dimensions is "" or "scalar".
Shape parse_shape(std::string_view text);

}  // namespace tensorbus

#pragma GCC visibility pop
