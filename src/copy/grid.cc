#include "copy/grid.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tensorbus::copy {
namespace {

constexpr std::size_t shortest_bypassing_row = 1024;

// The elements of a tile stay in the first-level cache at both ends.
constexpr std::size_t tile_side = 32;

bool dense(std::ptrdiff_t pitch, std::size_t bytes) {
  return pitch == static_cast<std::ptrdiff_t>(bytes);
}

std::ptrdiff_t times(std::size_t count, std::ptrdiff_t pitch) {
  return static_cast<std::ptrdiff_t>(count) * pitch;
}

// Elements one by one. If one end is dense along rows and the other along planes, this is a
// transposition, and going row by row would use one element of each cache line it loads.
void move_elements(const Grid& grid, CastSteps steps, const std::byte* from, std::byte* to) {
  const std::size_t tile = grid.planes < tile_side ? grid.rows : tile_side;
  for (std::size_t first = 0; first < grid.rows; first += tile) {
    const std::size_t rows = std::min(tile, grid.rows - first);
    for (std::size_t plane = 0; plane < grid.planes; ++plane) {
      steps(from + times(first, grid.from.row) + times(plane, grid.from.plane), grid.from.row,
            to + times(first, grid.to.row) + times(plane, grid.to.plane), grid.to.row, rows);
    }
  }
}

void move_rows(const Grid& grid, CastRow row, const std::byte* from, std::byte* to, Caches caches) {
  for (std::size_t plane = 0; plane < grid.planes; ++plane) {
    const std::byte* from_row = from + times(plane, grid.from.plane);
    std::byte* to_row = to + times(plane, grid.to.plane);
    for (std::size_t left = grid.rows; left > 0; --left) {
      row(from_row, to_row, grid.length, caches);
      from_row += grid.from.row;
      to_row += grid.to.row;
    }
  }
}

}  // namespace

Grid merged(Grid grid, ItemBytes items) {
  const auto rows_touch = [&] {
    return dense(grid.from.row, grid.length * items.from) &&
           dense(grid.to.row, grid.length * items.to);
  };
  if (grid.rows > 1 && rows_touch()) {
    grid.length *= grid.rows;
    grid.rows = 1;
  }
  if (grid.rows == 1) {
    grid.rows = std::exchange(grid.planes, 1);
    grid.from = {grid.from.plane, 0};
    grid.to = {grid.to.plane, 0};
    if (grid.rows > 1 && rows_touch()) {
      grid.length *= grid.rows;
      grid.rows = 1;
    }
  }
  return grid;
}

Caches caches_for_rows(std::size_t row_bytes, Caches wanted) noexcept {
  return row_bytes < shortest_bypassing_row ? Caches::keep : wanted;
}

void move(const Grid& grid, Dtype from_type, const std::byte* from, Dtype to_type, std::byte* to,
          Caches caches) {
  const ItemBytes items{item_bytes(from_type), item_bytes(to_type)};
  const Grid whole = merged(grid, items);
  if (whole.length == 1) {
    return move_elements(whole, cast_between(from_type, to_type).steps, from, to);
  }
  const std::size_t row_bytes = whole.length * items.to;
  if (from_type == to_type && row_bytes <= largest_copied_item && std::has_single_bit(row_bytes)) {
    return move_elements(whole, copy_of_size(row_bytes).steps, from, to);
  }
  move_rows(whole, cast_between(from_type, to_type).row, from, to,
            caches_for_rows(row_bytes, caches));
}

}  // namespace tensorbus::copy
