// Which of many boxes meet a given one.
#pragma once

#include <cstddef>
#include <vector>

#include "tensorbus/layout.h"

namespace tensorbus::plan {

// One interval per dimension; bounds are empty if one interval is. Bounds without dimensions are
// one element.
using Bounds = std::vector<Interval>;

bool is_empty(const Bounds& bounds) noexcept;
Bounds intersection(const Bounds& a, const Bounds& b);
// `from` without `taken`, as boxes that share nothing.
std::vector<Bounds> difference(const std::vector<Bounds>& from, const Bounds& taken);

// A tree of boxes round boxes. A question costs the logarithm of their number and what it finds.
class BoxIndex {
 public:
  BoxIndex() = default;
  explicit BoxIndex(std::vector<Bounds> boxes);

  struct Found {
    std::vector<std::size_t> boxes;  // positions, in ascending order
    std::size_t looked_at = 0;       // how many boxes, and boxes round boxes, were compared
  };
  // The boxes that share an element with `wanted`.
  Found find(const Bounds& wanted) const;
  std::vector<std::size_t> meeting(const Bounds& wanted) const { return find(wanted).boxes; }

 private:
  struct Node {
    Bounds bounds;
    std::size_t first = 0;  // in order_
    std::size_t end = 0;
    std::size_t second_child = 0;  // the first one follows its parent; 0: a leaf
  };
  void build(std::size_t first, std::size_t end);
  std::size_t widest_dim(std::size_t first, std::size_t end) const;

  std::vector<Bounds> boxes_;
  std::vector<std::size_t> order_;
  std::vector<Node> nodes_;
};

}  // namespace tensorbus::plan
