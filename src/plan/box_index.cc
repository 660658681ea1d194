#include "plan/box_index.h"

#include <algorithm>

namespace tensorbus::plan {
namespace {

constexpr std::size_t most_in_leaf = 4;

bool meet(const Bounds& a, const Bounds& b) noexcept {
  for (std::size_t dim = 0; dim < a.size(); ++dim) {
    if (std::max(a[dim].begin, b[dim].begin) >= std::min(a[dim].end, b[dim].end)) return false;
  }
  return true;
}

}  // namespace

bool is_empty(const Bounds& bounds) noexcept {
  return std::ranges::any_of(bounds, [](const Interval& each) { return each.size() <= 0; });
}

Bounds intersection(const Bounds& a, const Bounds& b) {
  Bounds both(a.size());
  for (std::size_t dim = 0; dim < a.size(); ++dim) {
    both[dim] = {std::max(a[dim].begin, b[dim].begin), std::min(a[dim].end, b[dim].end)};
  }
  return both;
}

std::vector<Bounds> difference(const std::vector<Bounds>& from, const Bounds& taken) {
  std::vector<Bounds> left;
  for (const Bounds& each : from) {
    const Bounds common = intersection(each, taken);
    if (is_empty(common)) {
      left.push_back(each);
      continue;
    }
    // What lies before and after it in one dimension, then the same within it in the next.
    Bounds inside = each;
    for (std::size_t dim = 0; dim < each.size(); ++dim) {
      for (const Interval outside : {Interval{inside[dim].begin, common[dim].begin},
                                     Interval{common[dim].end, inside[dim].end}}) {
        if (outside.size() <= 0) continue;
        left.push_back(inside);
        left.back()[dim] = outside;
      }
      inside[dim] = common[dim];
    }
  }
  return left;
}

BoxIndex::BoxIndex(std::vector<Bounds> boxes) : boxes_(std::move(boxes)) {
  for (std::size_t at = 0; at < boxes_.size(); ++at) {
    if (!is_empty(boxes_[at])) order_.push_back(at);
  }
  if (!order_.empty()) build(0, order_.size());
}

void BoxIndex::build(std::size_t first, std::size_t end) {
  const std::size_t self = nodes_.size();
  Bounds round = boxes_[order_[first]];
  for (std::size_t at = first; at < end; ++at) {
    const Bounds& box = boxes_[order_[at]];
    for (std::size_t dim = 0; dim < round.size(); ++dim) {
      round[dim] = {std::min(round[dim].begin, box[dim].begin),
                    std::max(round[dim].end, box[dim].end)};
    }
  }
  nodes_.push_back({std::move(round), first, end, 0});
  if (end - first <= most_in_leaf || boxes_[order_[first]].empty()) return;
  const std::size_t dim = widest_dim(first, end);
  const std::size_t middle = first + (end - first) / 2;
  const auto at = [&](std::size_t index) {
    return order_.begin() + static_cast<std::ptrdiff_t>(index);
  };
  std::ranges::nth_element(at(first), at(middle), at(end), {}, [&](std::size_t box) {
    return std::pair(boxes_[box][dim].begin, boxes_[box][dim].end);
  });
  build(first, middle);
  nodes_[self].second_child = nodes_.size();
  build(middle, end);
}

// The dimension along which the boxes begin farthest from each other.
std::size_t BoxIndex::widest_dim(std::size_t first, std::size_t end) const {
  std::size_t widest = 0;
  std::int64_t most = -1;
  for (std::size_t dim = 0; dim < boxes_[order_[first]].size(); ++dim) {
    const auto begin = [&](std::size_t at) { return boxes_[order_[at]][dim].begin; };
    std::int64_t low = begin(first);
    std::int64_t high = low;
    for (std::size_t at = first; at < end; ++at) {
      low = std::min(low, begin(at));
      high = std::max(high, begin(at));
    }
    if (high - low <= most) continue;
    most = high - low;
    widest = dim;
  }
  return widest;
}

BoxIndex::Found BoxIndex::find(const Bounds& wanted) const {
  Found found;
  std::vector<std::size_t> open;
  if (!nodes_.empty() && !is_empty(wanted)) open.push_back(0);
  while (!open.empty()) {
    const std::size_t at = open.back();
    const Node& node = nodes_[at];
    open.pop_back();
    ++found.looked_at;
    if (!meet(node.bounds, wanted)) continue;
    if (node.second_child != 0) {
      open.insert(open.end(), {at + 1, node.second_child});
      continue;
    }
    found.looked_at += node.end - node.first;
    for (std::size_t i = node.first; i < node.end; ++i) {
      if (meet(boxes_[order_[i]], wanted)) found.boxes.push_back(order_[i]);
    }
  }
  std::ranges::sort(found.boxes);
  return found;
}

}  // namespace tensorbus::plan
