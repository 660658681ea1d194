#include "device/cuda/copies.h"

#include <algorithm>

namespace tensorbus::device::cuda {
namespace {

Pointer pointer_to(const std::byte* data) { return reinterpret_cast<Pointer>(data); }

Memcpy2D rows_of(const std::byte* from, std::byte* to, const Block& block, std::int64_t rows) {
  Memcpy2D copy{};
  copy.src_type = copy.dst_type = unified;
  copy.src_device = pointer_to(from);
  copy.dst_device = pointer_to(to);
  copy.src_pitch = rows > 1 ? static_cast<std::size_t>(block.from_pitch.row) : block.bytes;
  copy.dst_pitch = rows > 1 ? static_cast<std::size_t>(block.to_pitch.row) : block.bytes;
  copy.width = block.bytes;
  copy.height = static_cast<std::size_t>(rows);
  return copy;
}

bool fits(std::int64_t pitch, std::size_t bytes, std::size_t longest) {
  return pitch >= 0 && static_cast<std::size_t>(pitch) >= bytes &&
         static_cast<std::size_t>(pitch) <= longest;
}

bool planes_lie_like_rows(const Block& block) {
  const auto follows = [&](const Pitch& pitch) { return pitch.plane == pitch.row * block.rows; };
  return block.planes == 1 || (follows(block.from_pitch) && follows(block.to_pitch));
}

// Rows are alike for the driver when there is a single row a plane.
Block simplified(Block block) {
  if (block.rows != 1) return block;
  block.rows = block.planes;
  block.from_pitch.row = block.from_pitch.plane;
  block.to_pitch.row = block.to_pitch.plane;
  block.planes = 1;
  return block;
}

// Rows that are too long for one copy.
std::vector<Memcpy2D> copies_of_parts(const Block& block, std::size_t longest) {
  std::vector<Memcpy2D> copies;
  for (std::size_t begin = 0; begin < block.bytes; begin += longest) {
    Block part = block;
    part.from += begin;
    part.to += begin;
    part.bytes = std::min(longest, block.bytes - begin);
    const auto more = copies_of(part, longest);
    copies.insert(copies.end(), more.begin(), more.end());
  }
  return copies;
}

}  // namespace

std::vector<Memcpy2D> copies_of(const Block& given, std::size_t longest) {
  if (given.bytes == 0 || given.rows == 0 || given.planes == 0) return {};
  if (given.bytes > longest) return copies_of_parts(given, longest);
  const Block block = simplified(given);
  const bool by_rows = fits(block.from_pitch.row, block.bytes, longest) &&
                       fits(block.to_pitch.row, block.bytes, longest);
  if (block.rows * block.planes == 1) return {rows_of(block.from, block.to, block, 1)};
  if (by_rows && planes_lie_like_rows(block)) {
    return {rows_of(block.from, block.to, block, block.rows * block.planes)};
  }
  std::vector<Memcpy2D> copies;
  for (std::int64_t plane = 0; plane < block.planes; ++plane) {
    const std::byte* from = block.from + plane * block.from_pitch.plane;
    std::byte* to = block.to + plane * block.to_pitch.plane;
    if (by_rows) {
      copies.push_back(rows_of(from, to, block, block.rows));
      continue;
    }
    for (std::int64_t row = 0; row < block.rows; ++row) {
      copies.push_back(
          rows_of(from + row * block.from_pitch.row, to + row * block.to_pitch.row, block, 1));
    }
  }
  return copies;
}

}  // namespace tensorbus::device::cuda
