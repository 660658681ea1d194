// The conversions and sums that carry most bytes, for the widest vectors of the processor at hand.
// Elements lie side by side and may start at any address. Each function equals its scalar twin bit
// for bit.
#pragma once

#include <cstddef>

namespace tensorbus::copy {

// Where written bytes go. After bypassing, the writer fences before it tells anyone (simd::fence).
enum class Caches : bool { keep, bypass };

}  // namespace tensorbus::copy

namespace tensorbus::copy::simd {

void float32_to_bfloat16(const std::byte* from, std::byte* to, std::size_t count, Caches caches);
void bfloat16_to_float32(const std::byte* from, std::byte* to, std::size_t count, Caches caches);
void float32_to_float16(const std::byte* from, std::byte* to, std::size_t count, Caches caches);
void float16_to_float32(const std::byte* from, std::byte* to, std::size_t count, Caches caches);

// sum[i] += float(from[i])
void add_float32(const std::byte* from, float* sum, std::size_t count);
void add_bfloat16(const std::byte* from, float* sum, std::size_t count);
void add_float16(const std::byte* from, float* sum, std::size_t count);

// Copies past the caches.
void stream(const std::byte* from, std::byte* to, std::size_t bytes);

// Makes bypassing stores visible before whatever this thread publishes next.
void fence() noexcept;

}  // namespace tensorbus::copy::simd
