// Makes the patch that one stream needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "copy/execute.h"
#include "delta/change/bitmap.h"
#include "delta/patch/packed.h"
#include "delta/patch/patch.h"

namespace tensorbus::delta {

// Knows how large the patch is before it is made, so that a dense read can be preferred to it.
class PatchWriter {
 public:
  // `packed` is of the source's side, `changes` are of its dense tensors; both are borrowed. Error
  // if a part reaches beyond the changes of its tensor.
  PatchWriter(const Packed& packed, std::span<const Bitmap> changes);

  std::size_t bytes() const noexcept { return bytes_; }
  // How many values the patch has, those of dense blocks included.
  std::int64_t values() const noexcept { return values_; }

  // Takes the values out of the version's tensors. `to` has bytes() bytes. Error if the changes are
  // not those of the constructor any more; `to` holds anything then.
  void write(const PatchId& id, copy::Sources from, std::span<std::byte> to) const;

 private:
  struct Part {
    PatchPartHeader header;
    std::vector<std::uint64_t> presence;
    std::vector<std::uint16_t> entries;
  };

  Part survey(std::size_t part) const;
  void write_part(std::size_t part, const std::byte* tensor, std::span<std::byte> to) const;
  const Bitmap& changes_of(std::size_t part) const { return changes_[packed_.tensor(part)]; }

  const Packed& packed_;
  const std::span<const Bitmap> changes_;
  std::vector<Part> parts_;
  std::size_t bytes_ = sizeof(PatchHeader);
  std::int64_t values_ = 0;
};

}  // namespace tensorbus::delta
