#include "delta/patch/apply.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/refuse.h"
#include "copy/cast.h"
#include "delta/patch/item_size.h"

namespace tensorbus::delta {
namespace {

constexpr std::size_t blocks_in_step = 64;
// Values whose lines are fetched before they are written to.
constexpr std::uint32_t ahead = 16;

// The part of a block's target that lies in one row: where elements [begin, end) of the block are.
struct Stretch {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::byte* first = nullptr;
};

// Finds the rows of a block's elements.
class Places {
 public:
  Places(const Packed& packed, const PatchBlock& block, std::byte* tensor)
      : packed_(packed), block_(block), tensor_(tensor) {}

  // The row that has an element of the block, from that element on.
  Stretch from(std::uint32_t position) const {
    const std::int64_t element = block_.first + position;
    const PackedRow row = packed_.row_of(block_.part, element);
    const auto item = static_cast<std::int64_t>(item_bytes(packed_.dtype(block_.part)));
    const std::int64_t end = std::min<std::int64_t>(row.end - block_.first, block_.size);
    return {position, static_cast<std::uint32_t>(end),
            tensor_ + row.offset + (element - row.begin) * item};
  }

 private:
  const Packed& packed_;
  const PatchBlock& block_;
  std::byte* const tensor_;
};

template <std::size_t item>
void put_all(const Places& places, const PatchBlock& block, const std::byte* values) {
  for (std::uint32_t at = 0; at < block.size;) {
    const Stretch stretch = places.from(at);
    const std::size_t bytes = (stretch.end - at) * item;
    std::memcpy(stretch.first, values, bytes);
    values += bytes;
    at = stretch.end;
  }
}

// Positions rise, so a row is looked for only when its predecessor has ended.
template <std::size_t item>
void put_some(const Places& places, const PatchBlock& block, const std::byte* values) {
  std::array<std::uint16_t, block_elements + 1> positions;
  block.positions(positions.data());
  Stretch stretch;
  for (std::uint32_t i = 0; i < block.count; ++i, values += item) {
    const std::uint32_t position = positions[i];
    if (position >= stretch.end) stretch = places.from(position);
    if (const std::uint32_t later = i + ahead;
        later < block.count && positions[later] < stretch.end) {
      __builtin_prefetch(stretch.first + (positions[later] - stretch.begin) * item, 1);
    }
    std::memcpy(stretch.first + (position - stretch.begin) * item, values, item);
  }
}

// Converts the values of a part to the type of its target.
class Converter {
 public:
  explicit Converter(const plan::ProgramPart& types)
      : casts_(types.wire != types.target),
        cast_(copy::cast_between(types.wire, types.target).row) {
    if (casts_) hot_.resize(static_cast<std::size_t>(block_elements) * item_bytes(types.target));
  }

  const std::byte* converted(const PatchBlock& block) {
    if (!casts_) return block.values;
    cast_(block.values, hot_.data(), block.count, copy::Caches::keep);
    return hot_.data();
  }

 private:
  bool casts_;
  copy::CastRow cast_;
  std::vector<std::byte> hot_;
};

void apply_block(const PatchBlock& block, const Packed& packed, std::byte* tensor,
                 const std::byte* values) {
  const Places places(packed, block, tensor);
  with_item_size(item_bytes(packed.dtype(block.part)), [&](auto item) {
    if (block.codec == Codec::dense) return put_all<item()>(places, block, values);
    put_some<item()>(places, block, values);
  });
}

}  // namespace

void apply_blocks(const CheckedPatch& patch, const Packed& packed, copy::Targets to,
                  std::size_t first, std::size_t end) {
  if (!std::ranges::equal(patch.parts(), packed.parts())) {
    refuse("a patch was checked for another program");
  }
  const std::span<const PatchBlock> blocks = patch.blocks().subspan(first, end - first);
  for (auto block = blocks.begin(); block != blocks.end();) {
    const std::uint32_t part = block->part;
    Converter converter(packed.types(part));
    for (; block != blocks.end() && block->part == part; ++block) {
      apply_block(*block, packed, to[packed.tensor(part)], converter.converted(*block));
    }
  }
}

void apply(const CheckedPatch& patch, const Packed& packed, copy::Targets to, copy::Crew& crew) {
  const std::size_t blocks = patch.blocks().size();
  crew.run((blocks + blocks_in_step - 1) / blocks_in_step, [&](std::size_t step) {
    const std::size_t first = step * blocks_in_step;
    apply_blocks(patch, packed, to, first, std::min(blocks, first + blocks_in_step));
  });
}

}  // namespace tensorbus::delta
