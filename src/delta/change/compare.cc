#include "delta/change/compare.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "delta/change/compare.cc"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per instruction set
// The order matters: foreach_target.h chooses what highway.h defines.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tensorbus::delta::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using copy::Caches;

constexpr std::size_t word_items = 64;
// Three streams at once are more than the processor foresees.
constexpr std::size_t prefetched_ahead = 2048;
constexpr std::size_t line_bytes = 64;

struct Rows {
  const std::byte* from;
  const std::byte* previous;
  std::byte* to;

  Rows after(std::size_t bytes) const { return {from + bytes, previous + bytes, to + bytes}; }
};

// Nothing is read there: the address may lie beyond the end.
HWY_INLINE void prefetch(const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += line_bytes) {
    hwy::Prefetch(reinterpret_cast<const char*>(from) + prefetched_ahead + at);
  }
}

template <std::size_t item>
std::uint64_t compare_few(const Rows& rows, std::size_t count) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Rows each = rows.after(i * item);
    const bool differs = std::memcmp(each.from, each.previous, item) != 0;
    bits |= static_cast<std::uint64_t>(differs) << i;
    std::memmove(each.to, each.from, item);
  }
  return bits;
}

// The bits of one vector.
template <typename D, Caches caches>
HWY_INLINE auto compare_vector(D d, const Rows& rows) {
  using T = hn::TFromD<D>;
  const auto value = hn::LoadU(d, reinterpret_cast<const T*>(rows.from));
  const auto before = hn::LoadU(d, reinterpret_cast<const T*>(rows.previous));
  if constexpr (caches == Caches::bypass) {
    hn::Stream(value, d, reinterpret_cast<T*>(rows.to));
  } else {
    hn::StoreU(value, d, reinterpret_cast<T*>(rows.to));
  }
  return hn::Ne(value, before);
}

template <typename D, Caches caches>
HWY_INLINE void compare_word(D d, const Rows& rows, std::uint64_t* word) {
  constexpr std::size_t item = sizeof(hn::TFromD<D>);
  const std::size_t lanes = hn::Lanes(d);
  prefetch(rows.from, word_items * item);
  prefetch(rows.previous, word_items * item);
  if (lanes >= 8) {
    auto* const bytes = reinterpret_cast<std::uint8_t*>(word);
    for (std::size_t i = 0; i < word_items; i += lanes) {
      hn::StoreMaskBits(d, compare_vector<D, caches>(d, rows.after(i * item)), bytes + i / 8);
    }
    return;
  }
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < word_items; i += lanes) {
    std::uint8_t few[8] = {};
    hn::StoreMaskBits(d, compare_vector<D, caches>(d, rows.after(i * item)), few);
    bits |= static_cast<std::uint64_t>(few[0]) << i;
  }
  *word = bits;
}

template <typename D, Caches caches>
void compare_row(D d, Rows rows, std::uint64_t* words, std::size_t count) {
  constexpr std::size_t item = sizeof(hn::TFromD<D>);
  for (; count >= word_items; count -= word_items) {
    compare_word<D, caches>(d, rows, words++);
    rows = rows.after(word_items * item);
  }
  if (count > 0) *words = compare_few<item>(rows, count);
}

template <typename T>
void compare_by(const std::byte* from, const std::byte* previous, std::byte* to,
                std::uint64_t* words, std::size_t count, Caches caches) {
  // A vector never has more lanes than a word has bits.
  const hn::CappedTag<T, word_items> d;
  const auto past = reinterpret_cast<std::uintptr_t>(to) % (hn::Lanes(d) * sizeof(T));
  // Lines that were just read are in the caches already.
  if (caches == Caches::bypass && past == 0 && previous != to) {
    return compare_row<decltype(d), Caches::bypass>(d, {from, previous, to}, words, count);
  }
  compare_row<decltype(d), Caches::keep>(d, {from, previous, to}, words, count);
}

void compare_1(const std::byte* from, const std::byte* previous, std::byte* to,
               std::uint64_t* words, std::size_t count, Caches caches) {
  compare_by<std::uint8_t>(from, previous, to, words, count, caches);
}

void compare_2(const std::byte* from, const std::byte* previous, std::byte* to,
               std::uint64_t* words, std::size_t count, Caches caches) {
  compare_by<std::uint16_t>(from, previous, to, words, count, caches);
}

void compare_4(const std::byte* from, const std::byte* previous, std::byte* to,
               std::uint64_t* words, std::size_t count, Caches caches) {
  compare_by<std::uint32_t>(from, previous, to, words, count, caches);
}

void compare_8(const std::byte* from, const std::byte* previous, std::byte* to,
               std::uint64_t* words, std::size_t count, Caches caches) {
  compare_by<std::uint64_t>(from, previous, to, words, count, caches);
}

// No vector has lanes as wide; such tensors are rare.
void compare_16(const std::byte* from, const std::byte* previous, std::byte* to,
                std::uint64_t* words, std::size_t count, Caches) {
  constexpr std::size_t item = 16;
  Rows rows{from, previous, to};
  while (count > 0) {
    const std::size_t few = std::min(count, word_items);
    *words++ = compare_few<item>(rows, few);
    rows = rows.after(few * item);
    count -= few;
  }
}

}  // namespace
}  // namespace tensorbus::delta::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorbus::delta {
namespace {

HWY_EXPORT(compare_1);
HWY_EXPORT(compare_2);
HWY_EXPORT(compare_4);
HWY_EXPORT(compare_8);
HWY_EXPORT(compare_16);

}  // namespace

CompareRow compare_items(std::size_t bytes) noexcept {
  switch (bytes) {
    case 1:
      return &HWY_DYNAMIC_DISPATCH(compare_1);
    case 2:
      return &HWY_DYNAMIC_DISPATCH(compare_2);
    case 4:
      return &HWY_DYNAMIC_DISPATCH(compare_4);
    case 8:
      return &HWY_DYNAMIC_DISPATCH(compare_8);
    default:
      return &HWY_DYNAMIC_DISPATCH(compare_16);
  }
}

}  // namespace tensorbus::delta
#endif
