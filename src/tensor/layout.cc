#include "tensorbus/layout.h"

#include <algorithm>
#include <array>

#include "tensor/checked.h"
#include "tensor/cut.h"

namespace tensorbus {
namespace {

constexpr std::array<std::string_view, 5> op_names = {"sum", "avg", "max", "min", "product"};

bool may_be_mixed(ReduceOp a, ReduceOp b) {
  const auto linear = [](ReduceOp op) { return op == ReduceOp::sum || op == ReduceOp::avg; };
  return a == b || (linear(a) && linear(b));
}

void check_reductions(const std::vector<Placement>& placements) {
  const Partial* first = nullptr;
  for (const Placement& placement : placements) {
    const auto* partial = std::get_if<Partial>(&placement);
    if (partial == nullptr) continue;
    if (first == nullptr) first = partial;
    if (!may_be_mixed(first->op, partial->op)) {
      throw Error(Code::invalid_argument, "a layout mixes " + to_string(Placement(*first)) +
                                              " and " + to_string(placement) +
                                              "; only sum and avg may be mixed");
    }
  }
}

}  // namespace

std::string_view to_string(ReduceOp op) noexcept { return op_names[static_cast<std::size_t>(op)]; }

ReduceOp parse_reduce_op(std::string_view name) {
  if (name == "prod") return ReduceOp::product;
  const auto found = std::ranges::find(op_names, name);
  if (found == op_names.end()) {
    throw Error(Code::invalid_argument, "reduction \"" + std::string(name) +
                                            "\" is unknown; there are sum, avg, max, min, product");
  }
  return static_cast<ReduceOp>(found - op_names.begin());
}

std::int64_t size(const Intervals& intervals) noexcept {
  std::int64_t total = 0;
  for (const Interval& interval : intervals) total += interval.size();
  return total;
}

Shape Holding::local_shape() const {
  Shape shape;
  shape.reserve(dims.size());
  for (const Intervals& intervals : dims) shape.push_back(size(intervals));
  return shape;
}

Layout::Layout(Mesh mesh, std::vector<Placement> placements)
    : mesh_(std::move(mesh)), placements_(std::move(placements)) {
  if (placements_.size() != mesh_.dims()) {
    throw Error(Code::invalid_argument, "a mesh of shape " + tensorbus::to_string(mesh_.shape()) +
                                            " needs " + std::to_string(mesh_.dims()) +
                                            " placements, one per dimension, but " +
                                            std::to_string(placements_.size()) + " are given");
  }
  for (const Placement& placement : placements_) {
    const auto* strided = std::get_if<StridedShard>(&placement);
    if (strided != nullptr && strided->split_factor < 1) {
      throw Error(Code::invalid_argument, "the split factor of placement " +
                                              tensorbus::to_string(placement) +
                                              " must be 1 or more");
    }
  }
  check_reductions(placements_);
}

bool Layout::has_partial() const noexcept {
  return std::ranges::any_of(placements_, [](const Placement& placement) {
    return std::holds_alternative<Partial>(placement);
  });
}

Holding Layout::holding(const Shape& shape, Rank rank) const {
  element_count(shape);
  const auto coordinates = mesh_.coordinates_of(mesh_.index_of(rank));
  const std::vector<Cuts> cuts = cuts_of(*this, shape.size());
  Holding holding;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    holding.dims.push_back(intervals_of(cuts[dim], shape[dim], coordinates));
  }
  return holding;
}

Shape Layout::local_shape(const Shape& shape, Rank rank) const {
  return holding(shape, rank).local_shape();
}

}  // namespace tensorbus
