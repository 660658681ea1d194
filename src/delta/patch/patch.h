// A patch: the new values of all elements of a stream that may differ from those of a base, and
// where they go. Values are absolute: a patch from version b to version k makes any content of the
// versions from b to k exact, however often it is applied.
//
// Little-endian. A header; then for every part of the stream a header and, if anything of the part
// is in the patch:
//   a bit for every block of 8,192 elements that has something in the patch, in words of 64 bits
//   for each of these blocks 16 bits: the codec (3), and how many values less one (13)
//   from a multiple of 8 on, the blocks' indices, one block after the other, as the codec has them
//   from a multiple of 16 on, the values in the wire's type, in the order of their positions
// and zeros up to a multiple of 16.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tensorbus::delta {

// Which content a reader holds in its tensors. Versions may repeat after restarts, generations do
// not.
struct HeldContent {
  std::int64_t generation = 0;
  std::int64_t version = 0;
  friend bool operator==(const HeldContent&, const HeldContent&) = default;
};

struct PatchId {
  std::int64_t generation = 0;
  std::int64_t base = 0;
  std::int64_t version = 0;
  std::uint64_t stream = 0;  // its fingerprint: streams of equal sizes are not equal

  friend bool operator==(const PatchId&, const PatchId&) = default;
};

// A reader may be ahead of the base: what the reader has got since is in the patch once more.
constexpr bool may_apply(const std::optional<HeldContent>& held, const PatchId& patch) noexcept {
  return held && held->generation == patch.generation && patch.base <= held->version &&
         held->version <= patch.version;
}

inline constexpr std::int64_t block_elements = 8192;

enum class Codec : std::uint8_t {
  positions,  // 16 bits for each
  gaps,       // 8 bits: how many are skipped; 255 skips 255 and has no value
  bitmap,     // a bit for each element of the block
  dense,      // nothing: all elements of the block
};
inline constexpr std::uint8_t codec_count = 4;
inline constexpr unsigned codec_bits = 3;
inline constexpr std::uint8_t gap_escape = 255;

struct PatchHeader {
  std::array<char, 4> magic = {'T', 'B', 'P', 'T'};
  std::uint32_t format = 1;
  PatchId id;
  std::uint32_t parts = 0;
  std::uint32_t reserved = 0;
  std::uint64_t bytes = 0;     // of the patch
  std::uint64_t checksum = 0;  // of everything else
};
static_assert(sizeof(PatchHeader) == 64);

struct PatchPartHeader {
  std::uint64_t elements = 0;
  std::uint64_t values = 0;
  std::uint64_t index_bytes = 0;
  std::uint32_t item_bytes = 0;
  std::uint32_t blocks = 0;  // that have something in the patch
};
static_assert(sizeof(PatchPartHeader) == 32);

inline constexpr std::size_t values_alignment = 16;

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t alignment) noexcept {
  return (bytes + alignment - 1) / alignment * alignment;
}
constexpr std::int64_t blocks_of(std::int64_t elements) noexcept {
  return elements / block_elements + (elements % block_elements != 0 ? 1 : 0);
}
constexpr std::size_t bitmap_bytes(std::size_t elements) noexcept { return (elements + 7) / 8; }
// The words with a bit for each block.
constexpr std::size_t presence_bytes(std::int64_t elements) noexcept {
  return rounded_up(static_cast<std::size_t>(blocks_of(elements)), 64) / 8;
}

// The places within a part, from its header on, which lies at a multiple of values_alignment.
struct PatchPlaces {
  std::size_t presence = sizeof(PatchPartHeader);
  std::size_t entries = 0;
  std::size_t indices = 0;
  std::size_t values = 0;
  std::size_t end = 0;
};
// For a header that has blocks. The caller has bounded the counts of the header.
PatchPlaces places_of(const PatchPartHeader& header) noexcept;

// XXH3 of everything but the checksum itself. The patch has a header.
std::uint64_t checksum_of(std::span<const std::byte> patch) noexcept;

}  // namespace tensorbus::delta
