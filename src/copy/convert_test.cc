#include "copy/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tensorbus::copy {
namespace {

template <typename Small>
void expect_all_patterns_survive_widening() {
  using Bits = typename Small::Bits;
  for (std::uint32_t pattern = 0; pattern <= std::numeric_limits<Bits>::max(); ++pattern) {
    const auto small = Small::from_bits(static_cast<Bits>(pattern));
    const float wide = small.widen();
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(Small::round(wide).widen())) << pattern;
    } else {
      EXPECT_EQ(Small::round(wide).bits(), pattern);
    }
  }
}

// proves: B4.3
TEST(Convert, SmallFloatsSurviveAVisitToFloat) {
  expect_all_patterns_survive_widening<Float16>();
  expect_all_patterns_survive_widening<Bfloat16>();
  expect_all_patterns_survive_widening<Float8E4m3>();
  expect_all_patterns_survive_widening<Float8E5m2>();
}

// The nearest of two neighbours wins, and the even one in the middle.
template <typename Small>
void expect_rounding_to_nearest_even() {
  using Bits = typename Small::Bits;
  for (Bits pattern = 0;; ++pattern) {
    const auto lower = Small::from_bits(pattern);
    const auto upper = Small::from_bits(static_cast<Bits>(pattern + 1));
    if (!std::isfinite(upper.widen())) break;
    const float middle = (lower.widen() + upper.widen()) / 2;
    const auto even = pattern % 2 == 0 ? lower : upper;
    EXPECT_EQ(Small::round(middle).bits(), even.bits());
    EXPECT_EQ(Small::round(std::nextafterf(middle, 0.0F)).bits(), lower.bits());
    EXPECT_EQ(Small::round(std::nextafterf(middle, INFINITY)).bits(), upper.bits());
    EXPECT_EQ(Small::round(-middle).widen(), -even.widen());
  }
}

// proves: B4.3
TEST(Convert, RoundingIsToNearestEvenSubnormalsIncluded) {
  expect_rounding_to_nearest_even<Float16>();
  expect_rounding_to_nearest_even<Float8E4m3>();
  expect_rounding_to_nearest_even<Float8E5m2>();
}

template <typename To, typename From>
void expect_saturation() {
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  constexpr auto highest = std::numeric_limits<To>::max();
  constexpr auto lowest = std::numeric_limits<To>::lowest();
  EXPECT_EQ(convert<To>(convert<From>(infinity)), highest);
  EXPECT_EQ(convert<To>(convert<From>(-infinity)), lowest);
  EXPECT_EQ(convert<To>(convert<From>(std::nanf(""))), 0);
  EXPECT_EQ(convert<To>(convert<From>(-0.75F)), 0);
  EXPECT_EQ(convert<To>(convert<From>(1.75F)), 1);
}

// proves: B4.3
TEST(Convert, FloatsOutOfAnIntegersRangeSaturateAndNanIsZero) {
  const auto from_every_float = []<typename To>(To) {
    expect_saturation<To, double>();
    expect_saturation<To, float>();
    expect_saturation<To, Float16>();
    expect_saturation<To, Bfloat16>();
    expect_saturation<To, Float8E5m2>();
  };
  from_every_float(std::int8_t{});
  from_every_float(std::int16_t{});
  from_every_float(std::int32_t{});
  from_every_float(std::int64_t{});
  from_every_float(std::uint8_t{});
}

// proves: B4.3
TEST(Convert, TheLastValuesInsideAnIntegersRangeAreExact) {
  EXPECT_EQ(convert<std::int8_t>(127.9F), 127);
  EXPECT_EQ(convert<std::int8_t>(-128.9F), -128);
  EXPECT_EQ(convert<std::uint8_t>(255.9), 255);
  EXPECT_EQ(convert<std::uint8_t>(-1.0), 0);
  EXPECT_EQ(convert<std::int32_t>(2147483646.5), 2147483646);
  EXPECT_EQ(convert<std::int32_t>(2147483520.0F), 2147483520);
  EXPECT_EQ(convert<std::int64_t>(9223372036854774784.0), 9223372036854774784);
  EXPECT_EQ(convert<std::int64_t>(9223372036854775808.0), std::numeric_limits<std::int64_t>::max());
}

// proves: B4.3
TEST(Convert, AnyNonZeroIsTrueAndAnyByteIsABool) {
  EXPECT_EQ(convert<Bool>(std::nanf("")).byte, 1);
  EXPECT_EQ(convert<Bool>(-0.0F).byte, 0);
  EXPECT_EQ(convert<Bool>(0x1p-149F).byte, 1);
  EXPECT_EQ(convert<Bool>(std::int64_t{1} << 40).byte, 1);
  EXPECT_EQ(convert<std::int32_t>(Bool{7}), 1);
}

}  // namespace
}  // namespace tensorbus::copy
