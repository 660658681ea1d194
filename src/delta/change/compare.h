// Copies rows of items and says which of them were different before, for the widest vectors of the
// processor at hand. Bits are compared, not values: -0.0 differs from 0.0, and a NaN equals itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "copy/simd.h"

namespace tensorbus::delta {

// Writes `count` items to `to`, and to `words` a bit for each that differs from the one in
// `previous`, from the lowest bit of the first word on; the rest of the last word becomes 0.
// `previous` may be `to`; otherwise nothing overlaps. Every word is written and no branch depends
// on what has changed: at 1 % a guess would be wrong for half of the words.
using CompareRow = void (*)(const std::byte* from, const std::byte* previous, std::byte* to,
                            std::uint64_t* words, std::size_t count, copy::Caches caches);

// For items of 1, 2, 4, 8 or 16 bytes, whatever they mean.
CompareRow compare_items(std::size_t bytes) noexcept;

}  // namespace tensorbus::delta
