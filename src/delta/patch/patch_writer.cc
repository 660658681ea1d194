#include "delta/patch/patch_writer.h"

#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <string>

#include "base/refuse.h"
#include "copy/cast.h"
#include "copy/prefetch.h"
#include "delta/patch/changed_blocks.h"
#include "delta/patch/item_size.h"

namespace tensorbus::delta {
namespace {

// Neighbours of one find are never further apart than a gap can say.
std::size_t escapes_in(const ChangedBlock& block) {
  std::size_t escapes = 0;
  std::size_t next = 0;
  for (const Found& found : block.found) {
    const auto first = found.at + static_cast<std::size_t>(std::countr_zero(found.bits));
    escapes += (first - next) / gap_escape;
    next = found.at + static_cast<std::size_t>(std::bit_width(found.bits));
  }
  return escapes;
}

// All elements can be taken: none lies where nothing was found.
bool is_covered(const ChangedBlock& block) {
  std::size_t covered = 0;
  for (const Found& found : block.found) covered += found.length;
  return covered == block.size;
}

struct Encoding {
  Codec codec = Codec::positions;
  std::size_t index_bytes = 0;
  std::size_t values = 0;

  std::uint16_t entry() const {
    return static_cast<std::uint16_t>((values - 1) << codec_bits | static_cast<unsigned>(codec));
  }
};

// The smallest there is.
Encoding encoding_of(const ChangedBlock& block, std::size_t item) {
  Encoding best{Codec::positions, 2 * block.count, block.count};
  const std::size_t gaps = block.count + escapes_in(block);
  if (gaps < best.index_bytes) best = {Codec::gaps, gaps, block.count};
  const std::size_t bitmap = bitmap_bytes(block.size);
  if (bitmap < best.index_bytes) best = {Codec::bitmap, bitmap, block.count};
  const std::size_t unchanged = (block.size - block.count) * item;
  if (unchanged < best.index_bytes && is_covered(block)) best = {Codec::dense, 0, block.size};
  return best;
}

// Calls visit(position in the block) for all that have changed, in order.
template <typename Visit>
void for_each_position(const ChangedBlock& block, Visit visit) {
  for (const Found& found : block.found) {
    for (std::uint64_t bits = found.bits; bits != 0; bits &= bits - 1) {
      visit(found.at + static_cast<std::uint32_t>(std::countr_zero(bits)));
    }
  }
}

void write_positions(const ChangedBlock& block, std::byte* to) {
  for_each_position(block, [&](std::uint32_t position) {
    const auto narrow = static_cast<std::uint16_t>(position);
    std::memcpy(to, &narrow, sizeof narrow);
    to += sizeof narrow;
  });
}

void write_gaps(const ChangedBlock& block, std::byte* to) {
  std::uint32_t next = 0;
  for_each_position(block, [&](std::uint32_t position) {
    std::uint32_t gap = position - next;
    for (; gap >= gap_escape; gap -= gap_escape) *to++ = std::byte{gap_escape};
    *to++ = static_cast<std::byte>(gap);
    next = position + 1;
  });
}

void write_bitmap(const ChangedBlock& block, std::byte* to) {
  std::array<std::uint64_t, block_elements / 64 + 1> words = {};
  for (const Found& found : block.found) {
    const std::uint32_t shift = found.at % 64;
    words[found.at / 64] |= found.bits << shift;
    if (shift != 0) words[found.at / 64 + 1] |= found.bits >> (64 - shift);
  }
  std::memcpy(to, words.data(), bitmap_bytes(block.size));
}

void write_indices(const ChangedBlock& block, Codec codec, std::byte* to) {
  switch (codec) {
    case Codec::positions:
      return write_positions(block, to);
    case Codec::gaps:
      return write_gaps(block, to);
    case Codec::bitmap:
      return write_bitmap(block, to);
    case Codec::dense:
      return;
  }
}

// The processor does not guess which lines come next.
void ask_for_values(const ChangedBlock& block, const std::byte* tensor, std::size_t item) {
  constexpr std::size_t line_bytes = 64;
  const std::size_t in_line = line_bytes / item;
  for (const Found& found : block.found) {
    const std::byte* first = tensor + static_cast<std::size_t>(found.element) * item;
    for (std::uint64_t rest = found.bits; rest != 0;) {
      const auto at = static_cast<std::size_t>(std::countr_zero(rest));
      prefetch_to_read(first + at * item);
      const std::size_t next = (at / in_line + 1) * in_line;
      rest = next >= 64 ? 0 : rest >> next << next;
    }
  }
}

// The chosen elements, or all of a dense block, side by side.
template <std::size_t item>
void gather(const ChangedBlock& block, bool all, const std::byte* tensor, std::byte* to) {
  for (const Found& found : block.found) {
    const std::byte* first = tensor + static_cast<std::size_t>(found.element) * item;
    if (all || found.bits == found.all_bits()) {
      std::memcpy(to, first, found.length * item);
      to += found.length * item;
      continue;
    }
    for (std::uint64_t bits = found.bits; bits != 0; bits &= bits - 1) {
      std::memcpy(to, first + static_cast<std::size_t>(std::countr_zero(bits)) * item, item);
      to += item;
    }
  }
}

// Takes values out of a tensor, in the wire's type.
class Values {
 public:
  Values(const plan::ProgramPart& types, const std::byte* tensor)
      : tensor_(tensor),
        item_(item_bytes(types.source)),
        casts_(types.source != types.wire),
        cast_(copy::cast_between(types.source, types.wire).row) {
    if (casts_) hot_.resize(static_cast<std::size_t>(block_elements) * item_);
  }

  void write(const ChangedBlock& block, const Encoding& encoding, std::byte* to) {
    with_item_size(item_, [&](auto item) {
      gather<item()>(block, encoding.codec == Codec::dense, tensor_, casts_ ? hot_.data() : to);
    });
    if (casts_) cast_(hot_.data(), to, encoding.values, copy::Caches::keep);
  }
  void ask_for(const ChangedBlock& block) const { ask_for_values(block, tensor_, item_); }

 private:
  const std::byte* tensor_;
  std::size_t item_;
  bool casts_;
  copy::CastRow cast_;
  std::vector<std::byte> hot_;
};

void put_zeros(std::span<std::byte> to, std::size_t begin, std::size_t end) {
  std::memset(to.data() + begin, 0, end - begin);
}

template <typename T>
void put(std::span<std::byte> to, std::size_t at, std::span<const T> values) {
  if (!values.empty()) std::memcpy(to.data() + at, values.data(), values.size_bytes());
}

std::size_t part_bytes(const PatchPartHeader& header) {
  return header.blocks == 0 ? sizeof header : places_of(header).end;
}

void check_rows(const Packed& packed, std::size_t part, const Bitmap& changes) {
  const auto item = static_cast<std::int64_t>(item_bytes(packed.dtype(part)));
  packed.for_each_row(part, [&](const PackedRow& row) {
    const std::int64_t end = row.offset / item + (row.end - row.begin);
    if (row.offset >= 0 && row.offset % item == 0 && end <= changes.size()) return;
    refuse("part " + std::to_string(part) + " of a stream reaches beyond the " +
           std::to_string(changes.size()) + " elements of its tensor");
  });
}

}  // namespace

PatchWriter::PatchWriter(const Packed& packed, std::span<const Bitmap> changes)
    : packed_(packed), changes_(changes) {
  for (std::size_t part = 0; part < packed.parts().size(); ++part) {
    if (packed.tensor(part) >= changes.size()) {
      refuse("there are no changes of tensor " + std::to_string(packed.tensor(part)));
    }
    check_rows(packed, part, changes_of(part));
    const Part& surveyed = parts_.emplace_back(survey(part));
    bytes_ += part_bytes(surveyed.header);
    values_ += static_cast<std::int64_t>(surveyed.header.values);
  }
}

PatchWriter::Part PatchWriter::survey(std::size_t part) const {
  const PackedPart& packed = packed_.parts()[part];
  Part surveyed;
  surveyed.header.elements = static_cast<std::uint64_t>(packed.elements);
  surveyed.header.item_bytes = packed.item_bytes;
  surveyed.presence.resize(presence_bytes(packed.elements) / 8);
  ChangedBlocks blocks(packed_, part, changes_of(part));
  blocks.for_each([&](const ChangedBlock& block) {
    const Encoding encoding = encoding_of(block, packed.item_bytes);
    const auto number = static_cast<std::size_t>(block.number);
    surveyed.presence[number / 64] |= std::uint64_t{1} << number % 64;
    surveyed.entries.push_back(encoding.entry());
    surveyed.header.index_bytes += encoding.index_bytes;
    surveyed.header.values += encoding.values;
  });
  surveyed.header.blocks = static_cast<std::uint32_t>(surveyed.entries.size());
  return surveyed;
}

void PatchWriter::write(const PatchId& id, copy::Sources from, std::span<std::byte> to) const {
  if (to.size() != bytes_) {
    refuse("a patch of " + std::to_string(bytes_) + " bytes was given room for " +
           std::to_string(to.size()));
  }
  PatchHeader header;
  header.id = id;
  header.parts = static_cast<std::uint32_t>(parts_.size());
  header.bytes = bytes_;
  std::memcpy(to.data(), &header, sizeof header);
  std::size_t at = sizeof header;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const std::size_t bytes = part_bytes(parts_[part].header);
    write_part(part, from[packed_.tensor(part)], to.subspan(at, bytes));
    at += bytes;
  }
  header.checksum = checksum_of(to);
  std::memcpy(to.data(), &header, sizeof header);
}

void PatchWriter::write_part(std::size_t part, const std::byte* tensor,
                             std::span<std::byte> to) const {
  const Part& surveyed = parts_[part];
  const PatchPartHeader& header = surveyed.header;
  put(to, 0, std::span(&header, 1));
  if (header.blocks == 0) return;
  const PatchPlaces places = places_of(header);
  put_zeros(to, places.entries, places.indices);
  put(to, places.presence, std::span(surveyed.presence));
  put(to, places.entries, std::span(surveyed.entries));
  std::size_t index = places.indices;
  std::size_t value = places.values;
  std::size_t entry = 0;
  Values values(packed_.types(part), tensor);
  ChangedBlocks blocks(packed_, part, changes_of(part));
  blocks.for_each([&](const ChangedBlock& block) {
    values.ask_for(block);
    const Encoding encoding = encoding_of(block, header.item_bytes);
    if (entry == surveyed.entries.size() || encoding.entry() != surveyed.entries[entry++] ||
        index + encoding.index_bytes > places.indices + header.index_bytes) {
      throw Error(Code::failed, "changes were added while their patch was made");
    }
    write_indices(block, encoding.codec, to.data() + index);
    values.write(block, encoding, to.data() + value);
    index += encoding.index_bytes;
    value += encoding.values * header.item_bytes;
  });
  if (entry != surveyed.entries.size() || index != places.indices + header.index_bytes) {
    throw Error(Code::failed, "changes were removed while their patch was made");
  }
  put_zeros(to, index, places.values);
  put_zeros(to, value, places.end);
}

}  // namespace tensorbus::delta
