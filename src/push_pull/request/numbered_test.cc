#include "push_pull/request/numbered.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tensorbus::push_pull {
namespace {

// proves: P8
TEST(NumberedTest, ANumberNamesItsValueUntilItIsRemovedAndNothingAfterwards) {
  Numbered<int> numbered;
  std::mt19937 random(1);
  std::vector<int> values(10);
  std::map<std::uint64_t, std::pair<std::uint64_t, int*>> live;  // first -> count, value
  std::uint64_t next = 1;
  for (int step = 0; step < 20'000; ++step) {
    if (live.size() < 300 && random() % 2 == 0) {
      const std::uint64_t count = random() % 5 + 1;
      int* const value = &values[random() % values.size()];
      ASSERT_EQ(numbered.add(*value, count), next) << "they count upwards without a gap";
      live[next] = {count, value};
      next += count;
    } else if (!live.empty()) {
      auto victim = live.begin();
      std::advance(victim, random() % live.size());
      const auto [first, entry] = *victim;
      numbered.remove(first, entry.first);
      live.erase(victim);
      for (std::uint64_t i = 0; i < entry.first; ++i) {
        ASSERT_EQ(numbered.find(first + i), nullptr);
        ASSERT_TRUE(numbered.was_given(first + i));
      }
    }
    if (step % 50 != 0) continue;
    for (const auto& [first, entry] : live) {
      for (std::uint64_t i = 0; i < entry.first; ++i) {
        ASSERT_EQ(numbered.find(first + i), entry.second);
      }
    }
  }
  EXPECT_EQ(numbered.find(0), nullptr);
  EXPECT_EQ(numbered.find(next), nullptr);
  EXPECT_EQ(numbered.find(UINT64_MAX), nullptr);
  EXPECT_FALSE(numbered.was_given(0));
  EXPECT_FALSE(numbered.was_given(next));
}

}  // namespace
}  // namespace tensorbus::push_pull
