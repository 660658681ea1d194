// The overlaps of one tensor dimension between a side that wants indices and a side that cuts them.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/cut.h"
#include "tensorbus/plan.h"

namespace tensorbus::plan {

// A cell is one combination of mesh coordinates of the cuts, numbered in row-major order. In the
// spans `source` is the cutting side and `target` the wanting one; spans are as long as possible.
struct Overlap {
  std::int64_t cell = 0;
  Spans spans;
};

// Adds a span, which may continue the last one.
void append(Spans& spans, const Span& next);

// Ordered by cell. The cost is that of the overlaps, whatever the number of cells.
std::vector<Overlap> overlaps(const Cuts& cuts, std::int64_t size, const Intervals& wanted);

std::int64_t cell_at(const Cuts& cuts, const std::vector<std::int64_t>& coordinates);
// Writes the coordinates of the cuts' mesh dimensions, leaves the others.
void set_coordinates(const Cuts& cuts, std::int64_t cell, std::vector<std::int64_t>& coordinates);

}  // namespace tensorbus::plan
