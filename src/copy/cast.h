// Rows of elements from one type to another.
#pragma once

#include <cstddef>

#include "copy/simd.h"
#include "tensorbus/dtype.h"

namespace tensorbus::copy {

// Converts `count` elements that lie `step` bytes apart, which may be 0 or negative.
using CastSteps = void (*)(const std::byte* from, std::ptrdiff_t from_step, std::byte* to,
                           std::ptrdiff_t to_step, std::size_t count);
// Converts `count` elements side by side.
using CastRow = void (*)(const std::byte* from, std::byte* to, std::size_t count, Caches caches);

struct Cast {
  CastSteps steps;
  CastRow row;
};

// Error if the types differ and do not convert.
Cast cast_between(Dtype from, Dtype to);

// Copies items of 1, 2, 4, 8 or 16 bytes, whatever they mean.
constexpr std::size_t largest_copied_item = 16;
Cast copy_of_size(std::size_t bytes);

// cast_between without SIMD, to test against.
Cast scalar_cast_between(Dtype from, Dtype to);

}  // namespace tensorbus::copy
