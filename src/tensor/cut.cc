#include "tensor/cut.h"

#include <algorithm>

#include "base/overloaded.h"
#include "tensor/checked.h"

namespace tensorbus {
namespace {

// A split factor beyond this would make one rank hold more intervals than anyone can mean.
constexpr std::int64_t most_intervals = std::int64_t{1} << 22;

std::size_t resolve(std::int64_t dim, std::size_t dims, const Placement& placement) {
  const auto count = static_cast<std::int64_t>(dims);
  if (dim < -count || dim >= count) {
    throw Error(Code::invalid_argument, "placement " + to_string(placement) +
                                            " shards a dimension that a tensor of " +
                                            std::to_string(dims) + " dimensions does not have");
  }
  return static_cast<std::size_t>(dim < 0 ? dim + count : dim);
}

void append(Intervals& intervals, Interval next) {
  if (next.size() == 0) return;
  if (!intervals.empty() && intervals.back().end == next.begin) {
    intervals.back().end = next.end;
  } else {
    intervals.push_back(next);
  }
}

// The indices at the positions `chosen` of `held`; both ascend.
Intervals select(const Intervals& held, const std::vector<Interval>& chosen) {
  Intervals selected;
  std::size_t at = 0;
  std::int64_t position = 0;  // of held[at]
  for (const Interval& interval : chosen) {
    std::int64_t begin = interval.begin;
    while (begin < interval.end) {
      while (position + held[at].size() <= begin) position += held[at++].size();
      const std::int64_t end = std::min(interval.end, position + held[at].size());
      const std::int64_t shift = held[at].begin - position;
      append(selected, {begin + shift, end + shift});
      begin = end;
    }
  }
  return selected;
}

}  // namespace

std::vector<Cuts> cuts_of(const Layout& layout, std::size_t dims) {
  std::vector<Cuts> cuts(dims);
  for (std::size_t mesh_dim = 0; mesh_dim < layout.placements().size(); ++mesh_dim) {
    const Placement& placement = layout.placements()[mesh_dim];
    const std::int64_t parts = layout.mesh().shape()[mesh_dim];
    std::visit(Overloaded{
                   [&](const Shard& shard) {
                     cuts[resolve(shard.dim, dims, placement)].push_back({mesh_dim, parts, 1});
                   },
                   [&](const StridedShard& strided) {
                     cuts[resolve(strided.dim, dims, placement)].push_back(
                         {mesh_dim, parts, strided.split_factor});
                   },
                   [](const OneOf<Replicate, Partial> auto&) {},  // these cut nothing
               },
               placement);
  }
  return cuts;
}

Division::Division(std::int64_t size, const Cut& cut)
    : size_(size),
      parts_(cut.parts),
      piece_(std::max<std::int64_t>(1, ceil_divide(size, cut.split_factor))),
      full_pieces_(size / piece_) {
  if (full_pieces_ > most_intervals) {
    throw Error(Code::invalid_argument,
                "split factor " + std::to_string(cut.split_factor) + " cuts a dimension of " +
                    std::to_string(size) + " into " + std::to_string(full_pieces_) +
                    " pieces; at most " + std::to_string(most_intervals) + " are possible");
  }
}

Interval Division::part_of(std::int64_t length, std::int64_t coordinate) const noexcept {
  const std::int64_t chunk = ceil_divide(length, parts_);
  // chunk * coordinate can exceed length, never 2 * length: coordinate < parts_.
  const std::int64_t begin = std::min(chunk * coordinate, length);
  return {begin, std::min(begin + chunk, length)};
}

std::int64_t Division::size_of(std::int64_t coordinate) const noexcept {
  return full_pieces_ * part_of(piece_, coordinate).size() +
         part_of(size_ - full_pieces_ * piece_, coordinate).size();
}

std::vector<Interval> Division::intervals_of(std::int64_t coordinate) const {
  std::vector<Interval> intervals;
  for (std::int64_t begin = 0; begin < size_; begin += piece_) {
    const Interval part = part_of(std::min(piece_, size_ - begin), coordinate);
    if (part.size() > 0) intervals.push_back({begin + part.begin, begin + part.end});
  }
  return intervals;
}

Division::Located Division::locate(std::int64_t index) const noexcept {
  const std::int64_t piece = index / piece_;
  const std::int64_t begin = piece * piece_;
  const std::int64_t length = std::min(piece_, size_ - begin);
  const std::int64_t offset = index - begin;
  const std::int64_t coordinate = offset / ceil_divide(length, parts_);
  const Interval part = part_of(length, coordinate);
  return {coordinate, piece * part_of(piece_, coordinate).size() + (offset - part.begin),
          part.end - offset};
}

Intervals intervals_of(const Cuts& cuts, std::int64_t size,
                       const std::vector<std::int64_t>& coordinates) {
  Intervals held;
  append(held, {0, size});
  std::int64_t held_size = size;
  for (const Cut& cut : cuts) {
    const Division division(held_size, cut);
    const std::int64_t coordinate = coordinates[cut.mesh_dim];
    held = select(held, division.intervals_of(coordinate));
    held_size = division.size_of(coordinate);
  }
  return held;
}

}  // namespace tensorbus
