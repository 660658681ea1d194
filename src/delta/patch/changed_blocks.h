// Cuts what has changed in a tensor along the pieces that one reader gets of it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "delta/change/bitmap.h"
#include "delta/patch/packed.h"
#include "delta/patch/patch.h"

namespace tensorbus::delta {

// Up to 64 neighbours in memory of which at least one has changed.
struct Found {
  std::uint64_t bits;
  std::int64_t element;  // the first one's position in the tensor
  std::uint32_t at;      // and in the block
  std::uint32_t length;

  std::uint64_t all_bits() const noexcept { return ~std::uint64_t{0} >> (64 - length); }
};

struct ChangedBlock {
  std::int64_t number = 0;
  std::size_t size = 0;   // elements
  std::size_t count = 0;  // of them changed, never 0
  std::span<const Found> found;
};

// Walks over a part of a stream, block by block.
class ChangedBlocks {
 public:
  // Everything is borrowed. The rows of the part lie within the bitmap.
  ChangedBlocks(const Packed& packed, std::size_t part, const Bitmap& changes)
      : packed_(packed),
        part_(part),
        changes_(changes),
        found_(std::make_unique_for_overwrite<Found[]>(most_finds(packed.parts()[part]))) {}

  // Calls visit(block) for every block with a change, in order.
  template <typename Visit>
  void for_each(const Visit& visit) {
    const auto item = static_cast<std::int64_t>(item_bytes(packed_.dtype(part_)));
    packed_.for_each_row(part_, [&](const PackedRow& row) {
      const std::int64_t first = row.offset / item;
      std::int64_t done = 0;
      for (const std::int64_t length = row.end - row.begin; done < length;) {
        done += add(first + done, length - done);
        if (filled_ == block_elements) flush(visit);
      }
    });
    if (filled_ > 0) flush(visit);
  }

 private:
  // Rows may have one element each; the last place is for a find that will be overwritten.
  static std::size_t most_finds(const PackedPart& part) {
    return static_cast<std::size_t>(std::min(part.elements, block_elements)) + 1;
  }

  // Adds at most what fits into a word and into the block; returns how many elements. Does not ask
  // whether there is a change: a find without a change is overwritten by the next.
  std::int64_t add(std::int64_t first, std::int64_t most) {
    const std::int64_t length = std::min({most, Bitmap::word_bits, block_elements - filled_});
    Found& found = found_[used_];
    found = {0, first, static_cast<std::uint32_t>(filled_), static_cast<std::uint32_t>(length)};
    found.bits = changes_.bits_from(first) & found.all_bits();
    used_ += found.bits != 0 ? 1 : 0;
    count_ += static_cast<std::size_t>(std::popcount(found.bits));
    filled_ += length;
    return length;
  }

  template <typename Visit>
  void flush(const Visit& visit) {
    if (count_ > 0) {
      visit(
          ChangedBlock{number_, static_cast<std::size_t>(filled_), count_, {found_.get(), used_}});
    }
    ++number_;
    filled_ = 0;
    used_ = count_ = 0;
  }

  const Packed& packed_;
  const std::size_t part_;
  const Bitmap& changes_;
  std::int64_t number_ = 0;
  std::int64_t filled_ = 0;
  std::size_t used_ = 0;
  std::size_t count_ = 0;
  const std::unique_ptr<Found[]> found_;
};

}  // namespace tensorbus::delta
