#include "delta/patch/checked_patch.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "tensorbus/status.h"

namespace tensorbus::delta {
namespace {

[[noreturn]] void fail(const std::string& why) {
  throw Error(Code::failed, "a patch cannot be read: " + why);
}

template <typename T>
T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

PatchHeader checked_header(std::span<const std::byte> bytes, std::size_t parts) {
  if (bytes.size() < sizeof(PatchHeader)) fail("it ends within its header");
  const auto header = load<PatchHeader>(bytes.data());
  if (header.magic != PatchHeader{}.magic) fail("it does not begin as one");
  if (header.format != PatchHeader{}.format) {
    fail("its format is " + std::to_string(header.format));
  }
  if (header.bytes != bytes.size()) {
    fail(std::to_string(bytes.size()) + " bytes have come of " + std::to_string(header.bytes));
  }
  if (header.parts != parts || header.reserved != 0) {
    fail("it has " + std::to_string(header.parts) + " parts, its reader " + std::to_string(parts));
  }
  if (header.checksum != checksum_of(bytes)) fail("its checksum does not fit");
  return header;
}

// The loops below are given at most `end`, and each gives back where its block's indices end.

const std::byte* check_positions(const PatchBlock& block, const std::byte* end) {
  const std::size_t bytes = block.count * sizeof(std::uint16_t);
  if (bytes > static_cast<std::size_t>(end - block.indices)) fail("positions are missing");
  std::uint32_t next = 0;
  for (std::uint32_t i = 0; i < block.count; ++i) {
    const std::uint32_t position = load<std::uint16_t>(block.indices + 2 * i);
    if (position < next || position >= block.size) fail("a position is out of order");
    next = position + 1;
  }
  return block.indices + bytes;
}

const std::byte* check_gaps(const PatchBlock& block, const std::byte* end) {
  const std::byte* at = block.indices;
  std::uint32_t position = 0;
  for (std::uint32_t left = block.count; left > 0; ++at) {
    if (at == end) fail("gaps are missing");
    const auto gap = std::to_integer<std::uint32_t>(*at);
    position += gap;
    if (position >= block.size) fail("a gap leads beyond its block");
    if (gap == gap_escape) continue;
    ++position;
    --left;
  }
  return at;
}

const std::byte* check_bitmap(const PatchBlock& block, const std::byte* end) {
  const std::size_t bytes = bitmap_bytes(block.size);
  if (bytes > static_cast<std::size_t>(end - block.indices)) fail("bits are missing");
  std::uint32_t count = 0;
  for (std::size_t at = 0; at < bytes; ++at) {
    count +=
        static_cast<std::uint32_t>(std::popcount(std::to_integer<std::uint8_t>(block.indices[at])));
  }
  if (count != block.count) fail("a bitmap has more or fewer bits than values");
  const auto last = std::to_integer<unsigned>(block.indices[bytes - 1]);
  if (block.size % 8 != 0 && last >> block.size % 8 != 0) fail("a bit is beyond its block");
  return block.indices + bytes;
}

const std::byte* check_indices(const PatchBlock& block, const std::byte* end) {
  switch (block.codec) {
    case Codec::positions:
      return check_positions(block, end);
    case Codec::gaps:
      return check_gaps(block, end);
    case Codec::bitmap:
      return check_bitmap(block, end);
    case Codec::dense:
      if (block.count != block.size) fail("a dense block has not all of its values");
      return block.indices;
  }
  fail("an unknown codec");
}

void check_zeros(const std::byte* from, const std::byte* end) {
  for (; from != end; ++from) {
    if (*from != std::byte{0}) fail("its gaps are not empty");
  }
}

// One part, from its header on.
class PartReader {
 public:
  PartReader(std::span<const std::byte> rest, const PackedPart& expected) : rest_(rest) {
    if (rest.size() < sizeof header_) fail("it ends within the header of a part");
    header_ = load<PatchPartHeader>(rest.data());
    const auto elements = static_cast<std::uint64_t>(expected.elements);
    if (header_.elements != elements || header_.item_bytes != expected.item_bytes) {
      fail("it was made for other tensors");
    }
    if (header_.blocks == 0) {
      if (header_.values != 0 || header_.index_bytes != 0) fail("values that belong to no block");
      places_.end = sizeof header_;
      return;
    }
    // None can be larger than the rest, so that no sum of them overflows.
    if (header_.values > rest.size() / header_.item_bytes || header_.index_bytes > rest.size() ||
        header_.blocks > rest.size() / sizeof(std::uint16_t) ||
        presence_bytes(expected.elements) > rest.size()) {
      fail("a part is larger than all of it");
    }
    places_ = places_of(header_);
    if (places_.end > rest.size()) fail("it ends within a part");
  }

  std::size_t bytes() const noexcept { return places_.end; }
  std::uint64_t values() const noexcept { return header_.values; }

  void append_blocks(std::uint32_t part, std::vector<PatchBlock>& blocks) const {
    if (header_.blocks == 0) return;
    const std::size_t first = blocks.size();
    append_present(part, blocks);
    if (blocks.size() - first != header_.blocks) fail("more or fewer blocks than it says");
    check_blocks(std::span(blocks).subspan(first));
  }

 private:
  const std::byte* at(std::size_t place) const { return rest_.data() + place; }

  void append_present(std::uint32_t part, std::vector<PatchBlock>& blocks) const {
    const auto elements = static_cast<std::int64_t>(header_.elements);
    for (std::size_t place = places_.presence; place < places_.entries; place += 8) {
      const auto word = static_cast<std::int64_t>((place - places_.presence) / 8);
      for (auto bits = load<std::uint64_t>(at(place)); bits != 0; bits &= bits - 1) {
        const std::int64_t number = word * 64 + std::countr_zero(bits);
        if (number >= blocks_of(elements)) fail("a block is beyond its part");
        const std::int64_t begin = number * block_elements;
        const auto size = static_cast<std::uint32_t>(std::min(block_elements, elements - begin));
        blocks.push_back({.part = part, .size = size, .first = begin});
      }
    }
  }

  void check_blocks(std::span<PatchBlock> blocks) const {
    const std::byte* index = at(places_.indices);
    const std::byte* const index_end = index + header_.index_bytes;
    const std::byte* value = at(places_.values);
    std::uint64_t left = header_.values;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      PatchBlock& block = blocks[i];
      const auto entry = load<std::uint16_t>(at(places_.entries) + i * sizeof(std::uint16_t));
      const unsigned codec = entry & ((1U << codec_bits) - 1);
      if (codec >= codec_count) fail("an unknown codec");
      block.codec = static_cast<Codec>(codec);
      block.count = (unsigned{entry} >> codec_bits) + 1;
      if (block.count > block.size || block.count > left) fail("a block has too many values");
      block.indices = index;
      block.values = value;
      index = check_indices(block, index_end);
      value += std::size_t{block.count} * header_.item_bytes;
      left -= block.count;
    }
    if (left != 0 || index != index_end) fail("more values or indices than its blocks have");
    check_zeros(at(places_.entries) + blocks.size() * sizeof(std::uint16_t), at(places_.indices));
    check_zeros(index_end, at(places_.values));
    check_zeros(value, at(places_.end));
  }

  std::span<const std::byte> rest_;
  PatchPartHeader header_;
  PatchPlaces places_;
};

}  // namespace

void PatchBlock::positions(std::uint16_t* to) const noexcept {
  if (codec == Codec::positions) {
    std::memcpy(to, indices, count * sizeof(std::uint16_t));
  } else if (codec == Codec::gaps) {
    std::uint32_t position = 0;
    const std::byte* at = indices;
    for (const std::uint16_t* const end = to + count; to != end;) {
      const auto gap = std::to_integer<std::uint32_t>(*at++);
      position += gap;
      // The position is written in vain if it has no value: the next position takes its place.
      *to = static_cast<std::uint16_t>(position);
      const bool has_value = gap != gap_escape;
      to += has_value ? 1 : 0;
      position += has_value ? 1 : 0;
    }
  } else if (codec == Codec::bitmap) {
    const std::size_t bytes = bitmap_bytes(size);
    for (std::size_t place = 0; place < bytes; place += 8) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, indices + place, std::min<std::size_t>(8, bytes - place));
      for (; bits != 0; bits &= bits - 1) {
        *to++ = static_cast<std::uint16_t>(place * 8 +
                                           static_cast<std::size_t>(std::countr_zero(bits)));
      }
    }
  }
}

CheckedPatch::CheckedPatch(std::span<const std::byte> bytes, std::span<const PackedPart> parts)
    : bytes_(bytes.size()), parts_(parts.begin(), parts.end()) {
  const PatchHeader header = checked_header(bytes, parts.size());
  id_ = header.id;
  checksum_ = header.checksum;
  std::span<const std::byte> rest = bytes.subspan(sizeof(PatchHeader));
  for (std::uint32_t part = 0; part < parts.size(); ++part) {
    const PartReader reader(rest, parts[part]);
    reader.append_blocks(part, blocks_);
    values_ += static_cast<std::int64_t>(reader.values());
    rest = rest.subspan(reader.bytes());
  }
  if (!rest.empty()) fail(std::to_string(rest.size()) + " bytes too many");
}

}  // namespace tensorbus::delta
