// Two sides that find each other. All ranks see the same records and come to the same verdict.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bus/directory/catalog.h"
#include "tensorbus/layout.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {

// A side with all its ranks, in the order of its mesh.
struct Side {
  End end;
  std::string remote;
  std::vector<Rank> ranks;
  std::vector<std::string> hosts;
  std::optional<Layout> layout;  // none: every rank is on its own

  bool partial() const { return layout && layout->has_partial(); }
  friend bool operator==(const Side&, const Side&) = default;
};

// Another rank has failed, and said so. A rank that fails because of that says nothing, or failures
// would echo for ever.
class FailedElsewhere : public Error {
 public:
  using Error::Error;
};

// Attempts that had failed before this rank's began: the ranks of those have to try again.
using KnownFailures = std::set<std::pair<Rank, std::uint64_t>>;

enum class Search : std::uint8_t {
  whole,
  in_short,  // takes as little as can be while ranks are missing, and does not say which
};

struct SideFinding {
  std::optional<Side> side;
  std::string missing;  // if there is none yet
};
// Throws Error(invalid_argument) that names the ranks of the side when they disagree, or one of
// them failed and `known` does not have the failure. Null: a rank that failed is simply not there.
SideFinding find_side(const Catalog& catalog, const End& end, const KnownFailures* known);

// The position of a coordinate in row-major order; nothing if the coordinate is outside of the
// mesh.
std::optional<std::size_t> position_in(const Shape& mesh, const Shape& coordinate);

// Error(invalid_argument) if these two cannot exchange anything.
void check_match(const Side& one, const Side& other);

struct Verdict {
  bool ready = false;
  Status failed;  // ok: not failed
  bool elsewhere = false;
  std::string missing;  // while neither, of a whole search
};
Verdict assess(const Catalog& catalog, const InitPair& pair, const KnownFailures& known,
               Search search = Search::whole);
KnownFailures failures(const Catalog& catalog, const InitPair& pair);

}  // namespace tensorbus::bus
