#include "bus/shelf/supply.h"

#include <algorithm>

namespace tensorbus::bus {
namespace {

bool all_have(std::span<const ShelfView> sources, std::int64_t version) {
  return std::ranges::all_of(
      sources, [&](const ShelfView& each) { return each.versions.contains(version); });
}

bool may_come(std::span<const ShelfView> sources, std::int64_t version) {
  return std::ranges::none_of(sources,
                              [&](const ShelfView& each) { return each.lacks_for_good(version); });
}

// From a source that has finished, a reader gets only versions that the source has.
bool has_nothing_left(std::span<const ShelfView> sources, const ShelfView& finished,
                      const Wanted& wanted) {
  return std::ranges::none_of(finished.versions, [&](std::int64_t version) {
    return wanted.covers(version) && may_come(sources, version);
  });
}

}  // namespace

Supply supply_of(std::span<const ShelfView> sources, const Wanted& wanted) {
  Supply supply;
  if (sources.empty()) return supply;
  for (const std::int64_t version : sources.front().versions) {
    if (wanted.covers(version) && all_have(sources, version)) supply.version = version;
  }
  if (supply.version != 0) return supply;
  for (const ShelfView& each : sources) {
    if (wanted.version && each.newest > *wanted.version && each.lacks_for_good(*wanted.version)) {
      supply.gone = true;
    }
    if (each.finished && has_nothing_left(sources, each, wanted)) supply.ended = true;
  }
  return supply;
}

}  // namespace tensorbus::bus
