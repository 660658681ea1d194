#include "copy/simd.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "copy/convert.h"
#include "copy/prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "copy/simd.cc"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per instruction set
// The order matters: foreach_target.h chooses what highway.h defines.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tensorbus::copy::simd::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Older x86 emulates half precision, and not bit for bit; its half vectors are too short to stream.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
constexpr bool converts_float16 = false;
constexpr bool streams_half_vectors = false;
#else
constexpr bool converts_float16 = true;
constexpr bool streams_half_vectors = true;
#endif

using Float32 = hn::ScalableTag<float>;
using Uint32 = hn::RebindToUnsigned<Float32>;
using Half16 = hn::Rebind<std::uint16_t, Float32>;

template <typename T>
T* at(std::byte* bytes) {
  return reinterpret_cast<T*>(bytes);
}
template <typename T>
const T* at(const std::byte* bytes) {
  return reinterpret_cast<const T*>(bytes);
}

struct ToBfloat16 {
  using From = float;
  using To = Bfloat16;
  static HWY_INLINE hn::Vec<Half16> narrow(const std::byte* from) {
    const Uint32 d;
    const auto value = hn::LoadU(Float32(), at<float>(from));
    const auto bits = hn::BitCast(d, value);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(d, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, odd), hn::Set(d, 0x7FFF)));
    const auto is_nan = hn::RebindMask(d, hn::IsNaN(value));
    const auto nan = hn::Set(d, Bfloat16::nan_of_wide_floats);
    const auto result = hn::IfThenElse(is_nan, nan, rounded);
    // At most 16 bits are set, so the saturating demotion keeps them.
    return hn::DemoteTo(Half16(), hn::BitCast(hn::RebindToSigned<Uint32>(), result));
  }
};

struct ToFloat16 {
  using From = float;
  using To = Float16;
  static HWY_INLINE hn::Vec<Half16> narrow(const std::byte* from) {
    const hn::Rebind<hwy::float16_t, Float32> d16;
    return hn::BitCast(Half16(), hn::DemoteTo(d16, hn::LoadU(Float32(), at<float>(from))));
  }
};

struct FromBfloat16 {
  using From = Bfloat16;
  using To = float;
  static HWY_INLINE hn::Vec<Float32> widen(const std::byte* from) {
    const auto wide = hn::PromoteTo(Uint32(), hn::LoadU(Half16(), at<std::uint16_t>(from)));
    return hn::BitCast(Float32(), hn::ShiftLeft<16>(wide));
  }
};

struct FromFloat16 {
  using From = Float16;
  using To = float;
  static HWY_INLINE hn::Vec<Float32> widen(const std::byte* from) {
    const hn::Rebind<hwy::float16_t, Float32> d16;
    const auto half = hn::LoadU(Half16(), at<std::uint16_t>(from));
    return hn::PromoteTo(Float32(), hn::BitCast(d16, half));
  }
};

struct FromFloat32 {
  using From = float;
  static HWY_INLINE hn::Vec<Float32> widen(const std::byte* from) {
    return hn::LoadU(Float32(), at<float>(from));
  }
};

template <typename Kernel>
void convert_each(const std::byte* from, std::byte* to, std::size_t count) {
  using From = typename Kernel::From;
  using To = typename Kernel::To;
  for (std::size_t i = 0; i < count; ++i) {
    store(to + i * sizeof(To), convert<To>(load<From>(from + i * sizeof(From))));
  }
}

// Elements until `to` is aligned for a whole vector, or all of them if it never is.
template <typename To>
std::size_t until_aligned(const std::byte* to, std::size_t vector_bytes, std::size_t count) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(to) % vector_bytes;
  if (past == 0) return 0;
  if (past % sizeof(To) != 0) return count;
  return std::min(count, (vector_bytes - past) / sizeof(To));
}

// Beside stores that go past the caches the processor does not read far enough ahead by itself.
// What is asked for past the end is not read.
constexpr std::size_t read_ahead = 2048;
constexpr std::size_t cache_line = 64;
constexpr std::size_t vectors_at_once = 4;

void ask_for_next(const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += cache_line) prefetch_to_read(from + read_ahead + at);
}

template <typename Kernel, Caches caches>
void narrow(const std::byte* from, std::byte* to, std::size_t count) {
  const Half16 d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t done = 0;
  if constexpr (caches == Caches::bypass) {
    done = until_aligned<std::uint16_t>(to, lanes * 2, count);
    convert_each<Kernel>(from, to, done);
    const std::size_t step = vectors_at_once * lanes;
    for (; done + step <= count; done += step) {
      ask_for_next(from + done * 4, step * 4);
      for (std::size_t at_lane = done; at_lane < done + step; at_lane += lanes) {
        hn::Stream(Kernel::narrow(from + at_lane * 4), d, at<std::uint16_t>(to + at_lane * 2));
      }
    }
  }
  for (; done + lanes <= count; done += lanes) {
    const auto value = Kernel::narrow(from + done * 4);
    if constexpr (caches == Caches::bypass) {
      hn::Stream(value, d, at<std::uint16_t>(to + done * 2));
    } else {
      hn::StoreU(value, d, at<std::uint16_t>(to + done * 2));
    }
  }
  convert_each<Kernel>(from + done * 4, to + done * 2, count - done);
}

template <typename Kernel, Caches caches>
void widen(const std::byte* from, std::byte* to, std::size_t count) {
  const Float32 d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t done = 0;
  if constexpr (caches == Caches::bypass) {
    done = until_aligned<float>(to, lanes * 4, count);
    convert_each<Kernel>(from, to, done);
    const std::size_t step = vectors_at_once * lanes;
    for (; done + step <= count; done += step) {
      ask_for_next(from + done * 2, step * 2);
      for (std::size_t at_lane = done; at_lane < done + step; at_lane += lanes) {
        hn::Stream(Kernel::widen(from + at_lane * 2), d, at<float>(to + at_lane * 4));
      }
    }
  }
  for (; done + lanes <= count; done += lanes) {
    const auto value = Kernel::widen(from + done * 2);
    if constexpr (caches == Caches::bypass) {
      hn::Stream(value, d, at<float>(to + done * 4));
    } else {
      hn::StoreU(value, d, at<float>(to + done * 4));
    }
  }
  convert_each<Kernel>(from + done * 2, to + done * 4, count - done);
}

template <typename Kernel>
void add_each(const std::byte* from, float* sum, std::size_t count) {
  using From = typename Kernel::From;
  for (std::size_t i = 0; i < count; ++i) sum[i] += arithmetic(load<From>(from + i * sizeof(From)));
}

template <typename Kernel>
void add(const std::byte* from, float* sum, std::size_t count) {
  using From = typename Kernel::From;
  const Float32 d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t done = 0;
  for (; done + lanes <= count; done += lanes) {
    const auto value = Kernel::widen(from + done * sizeof(From));
    hn::StoreU(hn::Add(hn::LoadU(d, sum + done), value), d, sum + done);
  }
  add_each<Kernel>(from + done * sizeof(From), sum + done, count - done);
}

template <typename Kernel>
void narrow_by(const std::byte* from, std::byte* to, std::size_t count,
               [[maybe_unused]] Caches caches) {
  if constexpr (streams_half_vectors) {
    if (caches == Caches::bypass) return narrow<Kernel, Caches::bypass>(from, to, count);
  }
  narrow<Kernel, Caches::keep>(from, to, count);
}

template <typename Kernel>
void widen_by(const std::byte* from, std::byte* to, std::size_t count, Caches caches) {
  if (caches == Caches::bypass) return widen<Kernel, Caches::bypass>(from, to, count);
  widen<Kernel, Caches::keep>(from, to, count);
}

void float32_to_bfloat16(const std::byte* from, std::byte* to, std::size_t count, Caches caches) {
  narrow_by<ToBfloat16>(from, to, count, caches);
}

void bfloat16_to_float32(const std::byte* from, std::byte* to, std::size_t count, Caches caches) {
  widen_by<FromBfloat16>(from, to, count, caches);
}

void float32_to_float16(const std::byte* from, std::byte* to, std::size_t count, Caches caches) {
  if constexpr (!converts_float16) return convert_each<ToFloat16>(from, to, count);
  narrow_by<ToFloat16>(from, to, count, caches);
}

void float16_to_float32(const std::byte* from, std::byte* to, std::size_t count, Caches caches) {
  if constexpr (!converts_float16) return convert_each<FromFloat16>(from, to, count);
  widen_by<FromFloat16>(from, to, count, caches);
}

void add_float32(const std::byte* from, float* sum, std::size_t count) {
  add<FromFloat32>(from, sum, count);
}

void add_bfloat16(const std::byte* from, float* sum, std::size_t count) {
  add<FromBfloat16>(from, sum, count);
}

void add_float16(const std::byte* from, float* sum, std::size_t count) {
  if constexpr (!converts_float16) return add_each<FromFloat16>(from, sum, count);
  add<FromFloat16>(from, sum, count);
}

// A long row is copied from both of its halves at once: the halves hide each other's waits for
// memory. With four places at once the processor's few write buffers would be flushed half full.
constexpr std::size_t shortest_halved_row = 64 << 10;

// A load waits for older stores to an address with the same low 12 bits, and stores past the caches
// are old before they are done. Backwards there are none if the target is ahead of the source
// there.
constexpr std::size_t compared_bytes = 4096;

bool is_better_backwards(const std::byte* from, const std::byte* to) {
  const std::size_t ahead =
      (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) %
      compared_bytes;
  return ahead != 0 && ahead < compared_bytes / 2;
}

void stream(const std::byte* from, std::byte* to, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t step = 4 * lanes;
  std::size_t done = until_aligned<std::byte>(to, lanes, bytes);
  std::memcpy(to, from, done);
  const auto load = [&](std::size_t offset) {
    return hn::LoadU(d, at<std::uint8_t>(from + offset));
  };
  const auto store = [&](auto value, std::size_t offset) {
    hn::Stream(value, d, at<std::uint8_t>(to + offset));
  };
  const auto move_step = [&](std::size_t offset) {
    const auto first = load(offset);
    const auto second = load(offset + lanes);
    const auto third = load(offset + 2 * lanes);
    const auto fourth = load(offset + 3 * lanes);
    store(first, offset);
    store(second, offset + lanes);
    store(third, offset + 2 * lanes);
    store(fourth, offset + 3 * lanes);
  };
  if (bytes >= shortest_halved_row) {
    const std::size_t half = (bytes - done) / (2 * compared_bytes) * compared_bytes;
    const bool backwards = is_better_backwards(from, to);
    for (std::size_t i = 0; i < half; i += step) {
      const std::size_t offset = done + (backwards ? half - step - i : i);
      move_step(offset);
      move_step(offset + half);
    }
    done += 2 * half;
  }
  for (; done + step <= bytes; done += step) move_step(done);
  for (; done + lanes <= bytes; done += lanes) store(load(done), done);
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace
}  // namespace tensorbus::copy::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tensorbus::copy::simd {
namespace {

HWY_EXPORT(float32_to_bfloat16);
HWY_EXPORT(bfloat16_to_float32);
HWY_EXPORT(float32_to_float16);
HWY_EXPORT(float16_to_float32);
HWY_EXPORT(add_float32);
HWY_EXPORT(add_bfloat16);
HWY_EXPORT(add_float16);
HWY_EXPORT(stream);

}  // namespace

void float32_to_bfloat16(const std::byte* from, std::byte* to, std::size_t count, Caches caches) {
  HWY_DYNAMIC_DISPATCH(float32_to_bfloat16)(from, to, count, caches);
}

void bfloat16_to_float32(const std::byte* from, std::byte* to, std::size_t count, Caches caches) {
  HWY_DYNAMIC_DISPATCH(bfloat16_to_float32)(from, to, count, caches);
}

void float32_to_float16(const std::byte* from, std::byte* to, std::size_t count, Caches caches) {
  HWY_DYNAMIC_DISPATCH(float32_to_float16)(from, to, count, caches);
}

void float16_to_float32(const std::byte* from, std::byte* to, std::size_t count, Caches caches) {
  HWY_DYNAMIC_DISPATCH(float16_to_float32)(from, to, count, caches);
}

void add_float32(const std::byte* from, float* sum, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(add_float32)(from, sum, count);
}

void add_bfloat16(const std::byte* from, float* sum, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(add_bfloat16)(from, sum, count);
}

void add_float16(const std::byte* from, float* sum, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(add_float16)(from, sum, count);
}

void stream(const std::byte* from, std::byte* to, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(stream)(from, to, bytes);
}

void fence() noexcept { hwy::FlushStream(); }

}  // namespace tensorbus::copy::simd
#endif
