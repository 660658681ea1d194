// For the tests of planning: random layouts, shapes and hosts, and types that stay.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tensorbus/plan.h"

namespace tensorbus::plan {

inline constexpr Types float32 = {Dtype::float32, Dtype::float32};

class RandomCase {
 public:
  explicit RandomCase(unsigned seed) : random_(seed) {}

  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(end));
  }

  Shape shape(std::int64_t most_dims = 3) {
    Shape shape;
    for (std::int64_t dims = below(most_dims + 1); dims > 0; --dims) shape.push_back(below(9));
    return shape;
  }

  Layout layout(std::size_t tensor_dims, bool may_be_partial) {
    constexpr ReduceOp ops[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::min, ReduceOp::product};
    const ReduceOp op = ops[below(4)];
    Shape mesh_shape;
    std::vector<Placement> placements;
    const auto dims = static_cast<std::int64_t>(tensor_dims);
    for (std::int64_t mesh_dims = below(4); mesh_dims > 0; --mesh_dims) {
      mesh_shape.push_back(1 + below(3));
      const std::int64_t kind = below(may_be_partial ? 7 : 6);
      if (kind == 6) {
        placements.emplace_back(Partial{op});
      } else if (kind < 2 || dims == 0) {
        placements.emplace_back(Replicate{});
      } else if (kind < 4) {
        placements.emplace_back(Shard{below(2 * dims) - dims});
      } else {
        placements.emplace_back(StridedShard{below(dims), 1 + below(4)});
      }
    }
    const Mesh counted(mesh_shape);
    std::vector<Rank> ranks = counted.ranks();
    std::shuffle(ranks.begin(), ranks.end(), random_);
    for (Rank& rank : ranks) rank = 3 * rank + 1;
    return Layout(below(2) == 0 ? counted : Mesh(mesh_shape, ranks), placements);
  }

  Hosts hosts(const Layout& source, const Layout& target) {
    Hosts hosts;
    if (below(3) == 0) return hosts;
    const std::int64_t count = 1 + below(4);
    const auto name = [&](auto) { return "host" + std::to_string(below(count)); };
    for (const Rank rank : source.mesh().ranks()) hosts.source.push_back(name(rank));
    for (const Rank rank : target.mesh().ranks()) hosts.target.push_back(name(rank));
    return hosts;
  }

  // Strides of a view: dimensions in any order in memory, with gaps.
  Shape strides(const Shape& local_shape) {
    if (below(3) == 0) return contiguous_strides(local_shape);
    std::vector<std::size_t> order;
    for (std::size_t dim = 0; dim < local_shape.size(); ++dim) order.push_back(dim);
    if (below(2) == 0) std::shuffle(order.begin(), order.end(), random_);
    Shape strides(local_shape.size());
    std::int64_t next = 1 + below(2);
    for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
      strides[*dim] = next;
      next *= std::max<std::int64_t>(1, local_shape[*dim]) + below(2);
    }
    return strides;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace tensorbus::plan
