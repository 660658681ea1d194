#include "plan/overlap.h"

#include <algorithm>
#include <map>

namespace tensorbus::plan {
namespace {

class Descent {
 public:
  explicit Descent(const Cuts& cuts) : cuts_(cuts) {}

  // `spans` are the wanted indices that lie in `cell` of the cuts before `level`, which has `size`.
  void descend(std::size_t level, std::int64_t cell, std::int64_t size, Spans spans) {
    if (level == cuts_.size()) {
      found.push_back({cell, std::move(spans)});
      return;
    }
    const Division division(size, cuts_[level]);
    std::map<std::int64_t, Spans> by_coordinate;
    for (Span span : spans) {
      while (span.length > 0) {
        const Division::Located located = division.locate(span.source);
        const std::int64_t length = std::min(span.length, located.remaining);
        append(by_coordinate[located.coordinate], {located.local, span.target, length});
        span.source += length;
        span.target += length;
        span.length -= length;
      }
    }
    for (auto& [coordinate, inside] : by_coordinate) {
      descend(level + 1, cell * cuts_[level].parts + coordinate, division.size_of(coordinate),
              std::move(inside));
    }
  }

  std::vector<Overlap> found;

 private:
  const Cuts& cuts_;
};

}  // namespace

void append(Spans& spans, const Span& next) {
  if (!spans.empty()) {
    Span& last = spans.back();
    if (last.source + last.length == next.source && last.target + last.length == next.target) {
      last.length += next.length;
      return;
    }
  }
  spans.push_back(next);
}

std::vector<Overlap> overlaps(const Cuts& cuts, std::int64_t size, const Intervals& wanted) {
  Spans spans;
  std::int64_t position = 0;
  for (const Interval& interval : wanted) {
    spans.push_back({interval.begin, position, interval.size()});
    position += interval.size();
  }
  if (spans.empty()) return {};
  Descent descent(cuts);
  descent.descend(0, 0, size, std::move(spans));
  return std::move(descent.found);
}

std::int64_t cell_at(const Cuts& cuts, const std::vector<std::int64_t>& coordinates) {
  std::int64_t cell = 0;
  for (const Cut& cut : cuts) cell = cell * cut.parts + coordinates[cut.mesh_dim];
  return cell;
}

void set_coordinates(const Cuts& cuts, std::int64_t cell, std::vector<std::int64_t>& coordinates) {
  for (std::size_t i = cuts.size(); i-- > 0;) {
    coordinates[cuts[i].mesh_dim] = cell % cuts[i].parts;
    cell /= cuts[i].parts;
  }
}

}  // namespace tensorbus::plan
