#include "delta/change/compare.h"

#include <gtest/gtest.h>

#include <hwy/highway.h>
#include <hwy/targets.h>
#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace tensorbus::delta {
namespace {

using Bytes = std::vector<std::byte>;
using copy::Caches;

constexpr std::size_t item_sizes[] = {1, 2, 4, 8, 16};
constexpr std::byte untouched{0xA5};

Bytes random_bytes(std::mt19937& random, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

// Two versions in which one item in `every` differs in one bit, and what comparing them gives.
struct Versions {
  Versions(std::mt19937& random, std::size_t item, std::size_t count, unsigned every)
      : before(random_bytes(random, item * count)), after(before), words((count + 63) / 64) {
    for (std::size_t i = 0; i < count; ++i) {
      if (random() % every != 0) continue;
      after[i * item + random() % item] ^= static_cast<std::byte>(1U << random() % 8);
      words[i / 64] |= std::uint64_t{1} << i % 64;
    }
  }

  Bytes before;
  Bytes after;
  std::vector<std::uint64_t> words;
};

// Runs the test once per instruction set that this processor has.
class CompareTest : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  std::mt19937 random_{1};
};

TEST_P(CompareTest, EveryChangedBitIsFoundAtEveryAlignmentAndTail) {
  for (const std::size_t item : item_sizes) {
    for (std::size_t count = 0; count < 200; count += 1 + count / 9) {
      for (const std::size_t shift : {0, 1, 16, 31}) {
        const Versions versions(random_, item, count, 1 + static_cast<unsigned>(count % 5));
        Bytes from(shift);
        from.insert(from.end(), versions.after.begin(), versions.after.end());
        for (const Caches caches : {Caches::keep, Caches::bypass}) {
          // Where a vector begins, and not.
          Bytes memory(versions.after.size() + 192, untouched);
          const std::size_t aligned =
              (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
          std::byte* const to = memory.data() + aligned + shift;
          std::vector<std::uint64_t> words(versions.words.size() + 1, 7);
          compare_items(item)(from.data() + shift, versions.before.data(), to, words.data(), count,
                              caches);
          copy::simd::fence();
          ASSERT_TRUE(std::ranges::equal(std::span(to, versions.after.size()), versions.after));
          ASSERT_EQ(words.back(), 7U) << "a word too many was written";
          words.pop_back();
          ASSERT_EQ(words, versions.words) << count << " items of " << item << " at " << shift;
          std::fill_n(to, versions.after.size(), untouched);
          ASSERT_EQ(std::ranges::count(memory, untouched), std::ssize(memory)) << "beside it";
        }
      }
    }
  }
}

TEST_P(CompareTest, AVersionCanTakeThePlaceOfTheOneBefore) {
  for (const std::size_t item : item_sizes) {
    const Versions versions(random_, item, 1001, 10);
    for (const Caches caches : {Caches::keep, Caches::bypass}) {
      Bytes place = versions.before;
      std::vector<std::uint64_t> words(versions.words.size());
      compare_items(item)(versions.after.data(), place.data(), place.data(), words.data(), 1001,
                          caches);
      EXPECT_EQ(place, versions.after);
      EXPECT_EQ(words, versions.words);
    }
  }
}

TEST_P(CompareTest, BitsAreComparedAndNotValues) {
  const std::uint16_t before[] = {0x0000, 0x7FC0, 0x7FC0, 0x7F80};  // 0, NaN, NaN, infinity
  const std::uint16_t after[] = {0x8000, 0x7FC0, 0x7FC1, 0x7F80};   // -0, NaN, another NaN
  std::uint16_t to[4];
  std::uint64_t word = 0;
  compare_items(2)(reinterpret_cast<const std::byte*>(after),
                   reinterpret_cast<const std::byte*>(before), reinterpret_cast<std::byte*>(to),
                   &word, 4, Caches::keep);
  EXPECT_EQ(word, 0b0101U);
  EXPECT_TRUE(std::ranges::equal(to, after));
}

std::vector<std::int64_t> instruction_sets() {
  std::vector<std::int64_t> each;
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    each.push_back(left & -left);
  }
  return each;
}

INSTANTIATE_TEST_SUITE_P(All, CompareTest, testing::ValuesIn(instruction_sets()),
                         [](const auto& param) {
                           return std::string(hwy::TargetName(param.param));
                         });

}  // namespace
}  // namespace tensorbus::delta
