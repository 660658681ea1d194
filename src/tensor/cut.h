// How mesh dimensions cut one tensor dimension, which is all that sharding is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorbus/layout.h"

namespace tensorbus {

// The dimension is cut into `split_factor` pieces and each of them into `parts`; coordinate c of
// the mesh dimension gets part c of every piece, one after the other.
struct Cut {
  std::size_t mesh_dim = 0;
  std::int64_t parts = 1;
  std::int64_t split_factor = 1;
};

// The cuts of one tensor dimension, each applied to what the cut before left.
using Cuts = std::vector<Cut>;

// The cuts of every dimension of a tensor; Error if a placement shards a dimension beyond `dims`.
std::vector<Cuts> cuts_of(const Layout& layout, std::size_t dims);

// Where indices 0..size of a dimension go by one cut.
class Division {
 public:
  Division(std::int64_t size, const Cut& cut);

  std::int64_t size_of(std::int64_t coordinate) const noexcept;
  // In ascending order; adjacent ones are not merged.
  std::vector<Interval> intervals_of(std::int64_t coordinate) const;

  // The part that an index lies in.
  struct Located {
    std::int64_t coordinate;
    std::int64_t local;      // the index among those of the coordinate
    std::int64_t remaining;  // how many indices from this one on lie side by side in the same part
  };
  Located locate(std::int64_t index) const noexcept;

 private:
  // The part of a piece of `length`.
  Interval part_of(std::int64_t length, std::int64_t coordinate) const noexcept;

  std::int64_t size_;
  std::int64_t parts_;
  std::int64_t piece_;        // length of every piece but the last
  std::int64_t full_pieces_;  // those of that length
};

// The indices of a dimension of `size` that are left after all cuts, at the given mesh coordinates.
Intervals intervals_of(const Cuts& cuts, std::int64_t size,
                       const std::vector<std::int64_t>& coordinates);

}  // namespace tensorbus
