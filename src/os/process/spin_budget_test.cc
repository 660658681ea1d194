#include "os/process/spin_budget.h"

#include <gtest/gtest.h>

namespace tensorbus::os {
namespace {

constexpr Duration longest = std::chrono::microseconds(100);
constexpr Duration shortest = std::chrono::microseconds(2);
constexpr int failures_in_a_row = 3;

void fail(SpinBudget& budget, int times) {
  for (int i = 0; i < times; ++i) {
    budget.next();
    budget.in_vain();
  }
}

// The last of them begins the try.
int waits_until_a_try(SpinBudget& budget) {
  int waits = 1;
  while (budget.next() != longest) {
    budget.in_vain();
    ++waits;
  }
  return waits;
}

// proves: P12
TEST(SpinBudgetTest, SpinsForLongWhileThatPays) {
  SpinBudget budget(longest, shortest);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(budget.next(), longest);
    i % 3 == 0 ? budget.came() : budget.in_vain();
  }
}

// proves: P12
TEST(SpinBudgetTest, SpinsBrieflyWhenItDoesNotAndTriesAgain) {
  SpinBudget budget(longest, shortest);
  fail(budget, failures_in_a_row);
  EXPECT_EQ(waits_until_a_try(budget), SpinBudget::fewest_waits_between_tries);
  budget.came();
  EXPECT_EQ(budget.next(), longest);
}

// proves: P12
TEST(SpinBudgetTest, TriesEverMoreSeldomWhileThatIsInVain) {
  SpinBudget budget(longest, shortest);
  fail(budget, failures_in_a_row);
  for (int waits = SpinBudget::fewest_waits_between_tries;
       waits <= SpinBudget::most_waits_between_tries; waits *= 2) {
    EXPECT_EQ(waits_until_a_try(budget), waits);
    budget.in_vain();
  }
  EXPECT_EQ(waits_until_a_try(budget), SpinBudget::most_waits_between_tries);
  for (int i = 0; i < failures_in_a_row; ++i) budget.came();
  fail(budget, failures_in_a_row);
  EXPECT_EQ(waits_until_a_try(budget), SpinBudget::fewest_waits_between_tries);
}

// proves: P12
TEST(SpinBudgetTest, YieldingEndsWhenTheCoreIsAwayForLongNowAndThen) {
  SpinBudget budget(longest, Duration::zero(), Between::yield);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(budget.next(), longest);
    i % 50 == 0 ? budget.in_vain() : budget.came();
  }
  // Every second one: what the others have saved is lost.
  int tries = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (budget.next() != longest) continue;
    ++tries % 2 == 0 ? budget.in_vain() : budget.came();
  }
  EXPECT_LT(tries, 40);
}

// proves: P12
TEST(SpinBudgetTest, NothingIsABudgetToo) {
  SpinBudget budget(Duration::zero(), Duration::zero());
  EXPECT_FALSE(budget.spins());
  EXPECT_EQ(budget.next(), Duration::zero());
  EXPECT_TRUE(SpinBudget(longest, shortest).spins());
}

// proves: P12
TEST(SpinBudgetTest, WhatTheUserSetsStays) {
  SpinBudget budget(longest, longest);
  fail(budget, 100);
  EXPECT_EQ(budget.next(), longest);
}

}  // namespace
}  // namespace tensorbus::os
