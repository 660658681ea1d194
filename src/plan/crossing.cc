// Who reads what from whom where a side has boxes.
#include <algorithm>

#include "plan/holdings.h"
#include "plan/overlap.h"

namespace tensorbus::plan {
namespace {

// What two lists have in common within an interval.
Spans spans_between(const Intervals& source, const Intervals& target, const Interval& within) {
  Spans spans;
  auto from = source.begin();
  auto to = target.begin();
  std::int64_t from_local = 0;  // of the intervals before
  std::int64_t to_local = 0;
  while (from != source.end() && to != target.end()) {
    const std::int64_t begin = std::max({from->begin, to->begin, within.begin});
    const std::int64_t end = std::min({from->end, to->end, within.end});
    if (begin < end) {
      append(spans, {from_local + begin - from->begin, to_local + begin - to->begin, end - begin});
    }
    if (from->end <= to->end) {
      from_local += (from++)->size();
    } else {
      to_local += (to++)->size();
    }
  }
  return spans;
}

// Nothing if the two holdings have nothing in common there.
std::vector<Spans> spans_between(const Holding& source, const Holding& target,
                                 const Bounds& within) {
  std::vector<Spans> dims;
  for (std::size_t dim = 0; dim < within.size(); ++dim) {
    dims.push_back(spans_between(source.dims[dim], target.dims[dim], within[dim]));
    if (dims.back().empty()) return {};
  }
  return dims;
}

bool meet(const Cell& one, const Cell& other) {
  const Bounds both = intersection(one.bounds, other.bounds);
  if (is_empty(both)) return false;
  return both.empty() || !spans_between(one.region, other.region, both).empty();
}

// How many of some locals come before `number`.
std::size_t count_before(const std::vector<std::size_t>& locals, std::size_t number) {
  return static_cast<std::size_t>(std::ranges::lower_bound(locals, number) - locals.begin());
}

}  // namespace

std::vector<Piece> Holdings::Data::reads(Rank rank) const {
  std::vector<Piece> pieces;
  const auto own = target.of_rank.find(rank);
  if (own == target.of_rank.end()) return pieces;
  for (const std::size_t number : own->second) {
    const Local& reader = target.locals[number];
    for (const std::size_t cell : source.index.meeting(target.cells[reader.cell].bounds)) {
      add_pieces(reader, number, cell, pieces);
    }
  }
  return pieces;
}

std::vector<Piece> Holdings::Data::serves(Rank rank) const {
  std::vector<Piece> pieces;
  const auto own = source.of_rank.find(rank);
  if (own == source.of_rank.end()) return pieces;
  // Readers and cells, in the order in which a reader goes through them.
  std::vector<std::pair<std::size_t, std::size_t>> served;
  for (const std::size_t number : own->second) {
    const Local& local = source.locals[number];
    const Cell& cell = source.cells[local.cell];
    for (const std::size_t wanted : target.index.meeting(cell.bounds)) {
      if (!meet(cell, target.cells[wanted])) continue;
      for (const std::size_t reader : target.cells[wanted].locals) {
        const bool chosen = choose(target.locals[reader], reader, cell) == local.replica;
        if (chosen) served.emplace_back(reader, local.cell);
      }
    }
  }
  std::ranges::sort(served);
  for (const auto& [reader, cell] : served) {
    add_pieces(target.locals[reader], reader, cell, pieces);
  }
  return pieces;
}

void Holdings::Data::add_pieces(const Local& reader, std::size_t number, std::size_t at,
                                std::vector<Piece>& pieces) const {
  const Cell& cell = source.cells[at];
  const Holding& wanted = target.cells[reader.cell].region;
  for (const Bounds& taken : share(reader, number, at)) {
    std::vector<Spans> dims = spans_between(cell.region, wanted, taken);
    if (dims.empty() && !taken.empty()) continue;
    const Replica& replica = cell.replicas[choose(reader, number, cell)];
    pieces.push_back({reader.rank, replica.group, std::move(dims), replica.box, reader.box});
  }
}

std::vector<Bounds> Holdings::Data::share(const Local& reader, std::size_t number,
                                          std::size_t cell) const {
  const Bounds common = intersection(source.cells[cell].bounds, target.cells[reader.cell].bounds);
  std::vector<Bounds> left{common};
  if (source.disjoint) return left;
  const std::size_t count = source.cells.size();
  const std::size_t first = number * count / target.locals.size();
  const auto place = [&](std::size_t each) {
    return std::pair(!source.cells[each].is_on(reader.host), (each + count - first) % count);
  };
  for (const std::size_t other : source.index.meeting(common)) {
    if (place(other) < place(cell)) left = difference(left, source.cells[other].bounds);
  }
  return left;
}

std::size_t Holdings::Data::choose(const Local& reader, std::size_t number,
                                   const Cell& cell) const {
  if (cell.replicas.size() == 1) return 0;
  const std::size_t turn = ordinal(reader, number, cell);
  if (!cell.has_candidates(reader.host)) return turn % cell.replicas.size();
  const std::vector<std::size_t>& near = cell.replicas_on.at(reader.host);
  return near[turn % near.size()];
}

std::size_t Holdings::Data::ordinal(const Local& reader, std::size_t number,
                                    const Cell& cell) const {
  std::size_t count = 0;
  const bool near = cell.has_candidates(reader.host);
  for (const std::size_t wanted : target.index.meeting(cell.bounds)) {
    const Cell& other = target.cells[wanted];
    if (!meet(cell, other)) continue;
    for (const auto& [host, locals] : other.locals_on) {
      const bool same = near ? host == reader.host : !cell.has_candidates(host);
      if (same) count += count_before(locals, number);
    }
  }
  return count;
}

std::vector<Box> Holdings::Data::missing(Rank rank) const {
  std::vector<Box> boxes;
  const auto own = target.of_rank.find(rank);
  if (own == target.of_rank.end() || source.disjoint) return boxes;
  for (const std::size_t number : own->second) {
    const Cell& wanted = target.cells[target.locals[number].cell];
    if (is_empty(wanted.bounds)) continue;
    std::vector<Bounds> left{wanted.bounds};
    for (const std::size_t cell : source.index.meeting(wanted.bounds)) {
      left = difference(left, source.cells[cell].bounds);
    }
    for (const Bounds& each : left) {
      if (!each.empty() && spans_between(wanted.region, wanted.region, each).empty()) continue;
      Box box;
      for (const Interval& dim : each) {
        box.start.push_back(dim.begin);
        box.shape.push_back(dim.size());
      }
      boxes.push_back(std::move(box));
    }
  }
  return boxes;
}

}  // namespace tensorbus::plan
