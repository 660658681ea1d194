// The floating-point types that C++20 does not have: each widens to float exactly and rounds from
// float to nearest, ties to even.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tensorbus::copy {

// IEEE-like floats of up to 16 bits, told apart by their fields alone.
struct Float16Format {
  using Bits = std::uint16_t;
  static constexpr int exponent_bits = 5;
  static constexpr int mantissa_bits = 10;
  static constexpr bool has_infinity = true;
};
struct Float8E4m3Format {
  using Bits = std::uint8_t;
  static constexpr int exponent_bits = 4;
  static constexpr int mantissa_bits = 3;
  static constexpr bool has_infinity = false;  // one NaN per sign, all ones; overflow saturates
};
struct Float8E5m2Format {
  using Bits = std::uint8_t;
  static constexpr int exponent_bits = 5;
  static constexpr int mantissa_bits = 2;
  static constexpr bool has_infinity = true;
};

namespace float32 {
constexpr int mantissa_bits = 23;
constexpr int bias = 127;
constexpr std::uint32_t sign = 0x8000'0000;
constexpr std::uint32_t infinity = 0x7F80'0000;
constexpr std::uint32_t mantissa_mask = 0x007F'FFFF;
constexpr std::uint32_t quiet = 0x0040'0000;
}  // namespace float32

template <typename Format>
class SmallFloat {
 public:
  using Bits = typename Format::Bits;

  static constexpr SmallFloat from_bits(Bits bits) {
    SmallFloat result;
    result.bits_ = bits;
    return result;
  }
  constexpr Bits bits() const { return bits_; }

  static constexpr SmallFloat round(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (wide & float32::sign) >> (32 - width);
    return from_bits(static_cast<Bits>(sign | round_magnitude(wide & ~float32::sign)));
  }

  constexpr float widen() const {
    const std::uint32_t sign = (std::uint32_t{bits_} & sign_bit) << (32 - width);
    return std::bit_cast<float>(sign | widen_magnitude(bits_ & (sign_bit - 1U)));
  }

 private:
  static constexpr int width = 1 + Format::exponent_bits + Format::mantissa_bits;
  static constexpr std::uint32_t sign_bit = 1U << (width - 1);
  static constexpr int bias = (1 << (Format::exponent_bits - 1)) - 1;
  static constexpr int dropped_bits = float32::mantissa_bits - Format::mantissa_bits;
  static constexpr std::uint32_t exponent_mask = (1U << Format::exponent_bits) - 1;
  // With infinity: the pattern of infinity. Without: the pattern after the largest number, which is
  // NaN.
  static constexpr std::uint32_t first_not_finite =
      Format::has_infinity ? exponent_mask << Format::mantissa_bits : sign_bit - 1U;

  // Every case is calculated and one is chosen: without branches compilers make vectors of it.
  static constexpr std::uint32_t round_magnitude(std::uint32_t wide) {
    constexpr std::uint32_t smallest_normal = std::uint32_t{float32::bias - bias + 1}
                                              << float32::mantissa_bits;
    constexpr std::uint32_t largest = Format::has_infinity ? first_not_finite : sign_bit - 2U;
    const std::uint32_t normal = std::min(round_normal(wide), largest);
    const std::uint32_t finite = wide < smallest_normal ? round_subnormal(wide) : normal;
    return wide > float32::infinity ? round_nan(wide) : finite;
  }

  static constexpr std::uint32_t round_normal(std::uint32_t wide) {
    constexpr std::uint32_t rebias = std::uint32_t{float32::bias - bias} << float32::mantissa_bits;
    constexpr std::uint32_t below_half = (1U << (dropped_bits - 1)) - 1;
    const std::uint32_t odd = (wide >> dropped_bits) & 1U;
    return (wide - rebias + below_half + odd) >> dropped_bits;
  }

  static constexpr std::uint32_t round_nan(std::uint32_t wide) {
    // Eight bits keep no payload; sixteen keep its upper bits, made quiet.
    if constexpr (sizeof(Bits) == 1) return sign_bit - 1U;
    constexpr std::uint32_t payload_mask = (1U << Format::mantissa_bits) - 1;
    constexpr std::uint32_t quiet = 1U << (Format::mantissa_bits - 1);
    return first_not_finite | quiet | ((wide >> dropped_bits) & payload_mask);
  }

  static constexpr std::uint32_t round_subnormal(std::uint32_t wide) {
    // The sum's last mantissa bit has the weight of our smallest subnormal, so the addition rounds.
    constexpr std::uint32_t magic = std::uint32_t{float32::bias - bias + 1 + dropped_bits}
                                    << float32::mantissa_bits;
    const float sum = std::bit_cast<float>(wide) + std::bit_cast<float>(magic);
    return std::bit_cast<std::uint32_t>(sum) - magic;
  }

  static constexpr std::uint32_t widen_magnitude(std::uint32_t bits) {
    constexpr std::uint32_t rebias = std::uint32_t{float32::bias - bias} << float32::mantissa_bits;
    const std::uint32_t normal = (bits << dropped_bits) + rebias;
    // Exact: an integer of few bits times a power of two.
    constexpr std::uint32_t unit = std::uint32_t{float32::bias - bias + 1 - Format::mantissa_bits}
                                   << float32::mantissa_bits;
    const auto subnormal = std::bit_cast<std::uint32_t>(
        static_cast<float>(static_cast<std::int32_t>(bits)) * std::bit_cast<float>(unit));
    const std::uint32_t payload = (bits << dropped_bits) & float32::mantissa_mask;
    const std::uint32_t quiet = Format::has_infinity && payload == 0 ? 0 : float32::quiet;
    const std::uint32_t finite = bits < (1U << Format::mantissa_bits) ? subnormal : normal;
    return bits >= first_not_finite ? float32::infinity | payload | quiet : finite;
  }

  Bits bits_;
};

using Float16 = SmallFloat<Float16Format>;
using Float8E4m3 = SmallFloat<Float8E4m3Format>;
using Float8E5m2 = SmallFloat<Float8E5m2Format>;

// The upper half of a float.
class Bfloat16 {
 public:
  using Bits = std::uint16_t;

  // torch has two NaNs here: this NaN where torch converts float32 and float64, vectorised.
  static constexpr Bits nan_of_wide_floats = 0xFFFF;
  // And this NaN for the narrower floats.
  static constexpr Bits nan_of_small_floats = 0x7FC0;

  static constexpr Bfloat16 from_bits(Bits bits) {
    Bfloat16 result;
    result.bits_ = bits;
    return result;
  }
  constexpr Bits bits() const { return bits_; }

  static constexpr Bfloat16 round(float value, Bits nan = nan_of_wide_floats) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    if ((wide & ~float32::sign) > float32::infinity) return from_bits(nan);
    const std::uint32_t odd = (wide >> 16) & 1U;
    return from_bits(static_cast<Bits>((wide + 0x7FFF + odd) >> 16));
  }

  // Keeps the bits of a NaN, signalling ones too.
  constexpr float widen() const { return std::bit_cast<float>(std::uint32_t{bits_} << 16); }

 private:
  Bits bits_;
};

}  // namespace tensorbus::copy
