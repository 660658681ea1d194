// The geometry of a run, seen from the two ends that a kernel moves elements between.
#pragma once

#include <cstddef>

#include "copy/cast.h"

namespace tensorbus::copy {

// One end: bytes from row to row and from plane to plane.
struct Pitch {
  std::ptrdiff_t row = 0;
  std::ptrdiff_t plane = 0;
};

// `length` elements side by side at both ends, in rows, in planes.
struct Grid {
  std::size_t length = 0;
  std::size_t rows = 1;
  std::size_t planes = 1;
  Pitch from;
  Pitch to;
};

struct ItemBytes {
  std::size_t from;
  std::size_t to;
};

// Rows that follow each other without a gap at both ends become one; rows are never 1 while there
// are planes.
Grid merged(Grid grid, ItemBytes items);

// Rows that are too short lose more to half-filled lines than bypassing the caches gains.
Caches caches_for_rows(std::size_t row_bytes, Caches wanted) noexcept;

// Moves every element of the grid.
void move(const Grid& grid, Dtype from_type, const std::byte* from, Dtype to_type, std::byte* to,
          Caches caches);

}  // namespace tensorbus::copy
