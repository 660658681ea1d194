#include "delta/change/bitmap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tensorbus/status.h"

namespace tensorbus::delta {
namespace {

TEST(Bitmap, BitsFromAnyElementOnAreThoseThatWereSet) {
  std::mt19937 random(1);
  for (const std::int64_t size : {1, 63, 64, 65, 127, 128, 1000}) {
    Bitmap bitmap(size);
    std::vector<bool> expected(static_cast<std::size_t>(size) + 64);
    for (std::int64_t i = 0; i < size; ++i) {
      if (random() % 3 != 0) continue;
      bitmap.set(i);
      expected[static_cast<std::size_t>(i)] = true;
    }
    for (std::int64_t first = 0; first < size; ++first) {
      const std::uint64_t bits = bitmap.bits_from(first);
      for (std::size_t i = 0; i < 64; ++i) {
        ASSERT_EQ((bits >> i & 1) != 0, expected[static_cast<std::size_t>(first) + i])
            << first << " + " << i << " of " << size;
      }
      ASSERT_EQ(bitmap.test(first), expected[static_cast<std::size_t>(first)]);
    }
    EXPECT_EQ(bitmap.count(), std::ranges::count(expected, true));
  }
}

TEST(Bitmap, WhatChangedInAnyOfTwoVersionsHasChanged) {
  Changes since = {Bitmap(100), Bitmap(3)};
  Changes more = {Bitmap(100), Bitmap(3)};
  since[0].set(7);
  more[0].set(7);
  more[0].set(99);
  more[1].set(0);
  merge(since, more);
  EXPECT_TRUE(since[0].test(7) && since[0].test(99) && since[1].test(0));
  EXPECT_EQ(count(since), 3);
  since[0].clear();
  EXPECT_EQ(count(since), 1);
}

TEST(Bitmap, ChangesOfOtherTensorsAreRefused) {
  Changes since = {Bitmap(100)};
  EXPECT_THROW(merge(since, {Bitmap(101)}), Error);
  EXPECT_THROW(merge(since, {Bitmap(100), Bitmap(1)}), Error);
  EXPECT_THROW(Bitmap(-1), Error);
}

TEST(Bitmap, ATensorWithoutElementsHasNoChanges) {
  Bitmap none(0);
  none |= Bitmap(0);
  EXPECT_EQ(none.count(), 0);
  EXPECT_TRUE(none.words().empty());
}

TEST(Bitmap, TheNumberOfBitsIsEstimatedFromAFew) {
  Changes changes{Bitmap(1000), Bitmap(std::int64_t{1} << 22)};
  for (std::int64_t i = 0; i < 1000; i += 10) changes[0].set(i);
  EXPECT_EQ(estimated_count(changes), 100);
  std::mt19937_64 random(1);
  for (int i = 0; i < 40'000; ++i) {
    changes[1].set(static_cast<std::int64_t>(random() % (1U << 22)));
  }
  const auto exact = static_cast<double>(count(changes));
  EXPECT_NEAR(static_cast<double>(estimated_count(changes)), exact, 0.1 * exact);
}

}  // namespace
}  // namespace tensorbus::delta
