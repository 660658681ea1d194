// What one sender serves to a group of readers: made once for all readers, since making takes
// readers x tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bus/match/match.h"

namespace tensorbus::bus {

class Serving {
 public:
  // Throws Error(invalid_argument) unless the tensors of both fit.
  Serving(GroupPtr sources, GroupPtr targets, Rank source);

  bool is_between(const GroupPtr& sources, const GroupPtr& targets) const noexcept {
    return sources == sources_ && targets == targets_;
  }
  // Equal to the fingerprint of the reader's own passage if reader and sender see the same records.
  std::uint64_t fingerprint(Rank reader) { return alike(reader).fingerprint; }
  // The streams in the order in which the reader counts them, cut into default chunks. Maybe none.
  const std::vector<plan::Stream>& to(Rank reader);
  // The readers that subscribe to this source: those that read from it; if the batch has versions,
  // all readers subscribe to the first source.
  std::vector<Rank> readers(bool versioned);

 private:
  // Readers with a part in the same pairs have the same plans, unless ranks face each other.
  struct Alike {
    std::uint64_t fingerprint = 0;
    std::map<Rank, std::vector<plan::Stream>> streams;
  };
  Alike& alike(Rank reader);

  const GroupPtr sources_;
  const GroupPtr targets_;
  const Rank source_;
  std::map<std::vector<std::string>, Alike> alike_;  // by those pairs
};

}  // namespace tensorbus::bus
