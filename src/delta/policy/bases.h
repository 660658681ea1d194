// From which versions a sender can make patches, and what the sender remembers for that: for every
// base that a reader holds or may come to hold, what has changed since. Pure state: no memory of
// tensors, no clock, no readers but their numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "delta/change/bitmap.h"

namespace tensorbus::delta {

class Bases {
 public:
  using Reader = std::uint64_t;

  // The tensors' elements, and how many bytes all bitmaps may have together.
  Bases(std::vector<std::int64_t> elements, std::size_t most_bytes)
      : elements_(std::move(elements)), most_bytes_(most_bytes) {}
  // From now on.
  void limit(std::size_t most_bytes);

  // Whether anybody has promised that nobody else writes to what it reads: else versions need not
  // be compared.
  bool wanted() const noexcept { return !readers_.empty(); }

  // A reader that promises it holds this version, or nothing that a patch could start from. The
  // version may be one that is not published any more.
  void hold(Reader reader, std::optional<std::int64_t> version);
  // The reader has begun to pull this version, and holds the version if all goes well.
  void expect(Reader reader, std::int64_t version);
  void leave(Reader reader);

  // The version differs from the one before in these elements. To be told before the version can be
  // pulled. Versions rise.
  void publish(std::int64_t version, const Changes& changes);
  // The version was not compared: no earlier version is a base any more.
  void publish_uncompared(std::int64_t version);

  struct Since {
    std::int64_t base;
    const Changes* changes;  // until the next call that is not const
  };
  // What a reader that holds a version may lack: from the newest base that is not newer. Nothing:
  // the reader has to read all.
  std::optional<Since> since(std::int64_t held) const;

  // The last version that was published; 0: none.
  std::int64_t newest() const noexcept { return newest_; }
  std::size_t bytes() const noexcept { return since_.size() * bytes_each(); }
  std::size_t kept() const noexcept { return since_.size(); }
  // Bases that were wanted and had no room.
  std::int64_t dropped_for_room() const noexcept { return dropped_for_room_; }

 private:
  struct Pins {
    std::optional<std::int64_t> holds;
    std::optional<std::int64_t> expects;
  };

  std::size_t bytes_each() const;
  Changes nothing() const;
  bool is_pinned(std::int64_t base) const;
  void pin(std::int64_t version);
  void check_rises(std::int64_t version) const;
  void begin(std::int64_t version);
  void drop_unpinned();
  void make_room();

  const std::vector<std::int64_t> elements_;
  std::size_t most_bytes_;
  std::map<Reader, Pins> readers_;
  std::map<std::int64_t, Changes> since_;  // by base
  std::int64_t newest_ = 0;
  std::int64_t dropped_for_room_ = 0;
};

}  // namespace tensorbus::delta
