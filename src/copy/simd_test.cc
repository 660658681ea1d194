#include "copy/simd.h"

#include <gtest/gtest.h>

#include <hwy/highway.h>
#include <hwy/targets.h>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "copy/cast.h"

namespace tensorbus::copy {
namespace {

using Bytes = std::vector<std::byte>;

struct Pair {
  Dtype from;
  Dtype to;
};

constexpr Pair fast_pairs[] = {{Dtype::float32, Dtype::bfloat16},
                               {Dtype::bfloat16, Dtype::float32},
                               {Dtype::float32, Dtype::float16},
                               {Dtype::float16, Dtype::float32}};

// Every 16-bit pattern, as 16-bit elements and as the upper half of 32-bit ones whose lower half is
// random: all exponents, infinities and NaNs.
Bytes patterns(Dtype dtype) {
  std::mt19937 random(1);
  Bytes bytes(0x10000 * item_bytes(dtype));
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const std::uint32_t wide = pattern << 16 | (random() & 0xFFFF);
    if (item_bytes(dtype) == 4) {
      std::memcpy(bytes.data() + pattern * 4UL, &wide, 4);
    } else {
      std::memcpy(bytes.data() + pattern * 2UL, &pattern, 2);
    }
  }
  return bytes;
}

// Runs the test once per instruction set that this processor has.
class SimdTest : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// proves: B4.3
TEST_P(SimdTest, EqualsTheScalarConversionForEveryPattern) {
  for (const auto [from, to] : fast_pairs) {
    const Bytes input = patterns(from);
    Bytes expected(0x10000 * item_bytes(to));
    scalar_cast_between(from, to).row(input.data(), expected.data(), 0x10000, Caches::keep);
    for (const Caches caches : {Caches::keep, Caches::bypass}) {
      Bytes result(expected.size());
      cast_between(from, to).row(input.data(), result.data(), 0x10000, caches);
      simd::fence();
      EXPECT_EQ(result, expected) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST_P(SimdTest, EqualsTheScalarConversionAtEveryAlignmentAndTail) {
  for (const auto [from, to] : fast_pairs) {
    const Bytes input = patterns(from);
    for (std::size_t shift = 0; shift < 40; ++shift) {
      for (std::size_t count = 0; count < 70; count += shift % 2 == 0 ? 1 : 7) {
        for (const Caches caches : {Caches::keep, Caches::bypass}) {
          Bytes expected(512);
          Bytes result(512);
          const std::byte* first = input.data() + shift * 3;
          scalar_cast_between(from, to).row(first, expected.data() + shift, count, Caches::keep);
          cast_between(from, to).row(first, result.data() + shift, count, caches);
          simd::fence();
          ASSERT_EQ(result, expected)
              << to_string(from) << " to " << to_string(to) << ", " << count << " at " << shift;
        }
      }
    }
  }
}

TEST_P(SimdTest, StreamsEveryByteAndNoneBeside) {
  const Bytes input = patterns(Dtype::int16);
  for (std::size_t shift = 0; shift < 70; ++shift) {
    for (const std::size_t bytes :
         {0, 1, 15, 63, 64, 65, 200, 1000, 65'535, 65'536, 65'700, 65'920, 90'001}) {
      Bytes expected(bytes + 200);
      Bytes result(bytes + 200);
      std::memcpy(expected.data() + shift, input.data() + 2 * shift + 1, bytes);
      simd::stream(input.data() + 2 * shift + 1, result.data() + shift, bytes);
      simd::fence();
      ASSERT_EQ(result, expected) << bytes << " at " << shift;
    }
  }
}

std::vector<std::int64_t> targets() {
  std::vector<std::int64_t> each;
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    each.push_back(left & -left);
  }
  return each;
}

INSTANTIATE_TEST_SUITE_P(All, SimdTest, testing::ValuesIn(targets()), [](const auto& param) {
  return std::string(hwy::TargetName(param.param));
});

}  // namespace
}  // namespace tensorbus::copy
