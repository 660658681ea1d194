// Which version a pull can have, from what its sources have. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>

namespace tensorbus::bus {

// What a reader knows of one source.
struct ShelfView {
  std::set<std::int64_t> versions;  // that are complete there
  std::int64_t newest = 0;          // that ever was: none below it will come
  bool finished = false;            // none above it will come

  bool lacks_for_good(std::int64_t version) const {
    return !versions.contains(version) && (finished || version < newest);
  }
};

// By a pull: this version, whatever the other, or any above another.
struct Wanted {
  std::optional<std::int64_t> version;
  std::int64_t above = 0;

  bool covers(std::int64_t other) const noexcept {
    return version ? other == *version : other > above;
  }
};

struct Supply {
  std::int64_t version = 0;  // the newest that all sources have; 0: none
  bool gone = false;         // the very one that is wanted was recycled or skipped
  bool ended = false;        // nothing that is wanted will come any more
};
Supply supply_of(std::span<const ShelfView> sources, const Wanted& wanted);

}  // namespace tensorbus::bus
