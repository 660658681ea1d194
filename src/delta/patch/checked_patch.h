// A patch from elsewhere whose every length, count and position was looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "delta/patch/packed.h"
#include "delta/patch/patch.h"

namespace tensorbus::delta {

struct PatchBlock {
  std::uint32_t part = 0;
  std::uint32_t size = 0;   // elements
  std::int64_t first = 0;   // element of the part
  std::uint32_t count = 0;  // of values, never 0
  Codec codec = Codec::positions;
  const std::byte* indices = nullptr;
  const std::byte* values = nullptr;

  // All within the block and in rising order; room for `count` of them. None of a dense block.
  void positions(std::uint16_t* to) const noexcept;
};

class CheckedPatch {
 public:
  // The bytes are borrowed, and nobody else may change the bytes: they are checked once and read
  // again when the patch is applied. `parts` are those of the reader's own program. Error if the
  // patch is damaged, was made for another stream or claims anything that it does not have.
  CheckedPatch(std::span<const std::byte> bytes, std::span<const PackedPart> parts);

  const PatchId& id() const noexcept { return id_; }
  std::uint64_t checksum() const noexcept { return checksum_; }
  std::span<const PackedPart> parts() const noexcept { return parts_; }
  // The blocks that have something in the patch; no two blocks share an element.
  std::span<const PatchBlock> blocks() const noexcept { return blocks_; }
  std::int64_t values() const noexcept { return values_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  PatchId id_;
  std::uint64_t checksum_ = 0;
  std::size_t bytes_;
  std::vector<PackedPart> parts_;
  std::vector<PatchBlock> blocks_;
  std::int64_t values_ = 0;
};

}  // namespace tensorbus::delta
