#include "base/hot/ticker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>

#include "base/clock.h"

namespace tensorbus {
namespace {

std::int64_t clock_ns() { return now().time_since_epoch().count(); }

// Two reads of two clocks are never at one moment.
constexpr std::int64_t slack = 1'000;

TEST(TickerTest, StampsAreTimesOfTheSteadyClock) {
  const Ticker ticker;
  for (int i = 0; i < 100; ++i) {
    const std::int64_t before = clock_ns();
    std::array stamps{ticker.now(), ticker.now_after_reading()};
    const std::int64_t after = clock_ns();
    ticker.to_nanoseconds(stamps);
    EXPECT_TRUE(std::ranges::is_sorted(stamps));
    EXPECT_GE(stamps.front(), before - slack);
    EXPECT_LE(stamps.back(), after + slack);
  }
}

TEST(TickerTest, AStampKeepsItsTimeHoweverLateItIsLookedAt) {
  const Ticker ticker;
  const std::int64_t before = clock_ns();
  std::array stamp{ticker.now()};
  const std::int64_t after = clock_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ticker.to_nanoseconds(stamp);
  EXPECT_GE(stamp[0], before - slack);
  EXPECT_LE(stamp[0], after + slack);
}

TEST(TickerTest, WhatAnotherHasReadCameBefore) {
  const Ticker ours;
  const Ticker theirs;
  std::atomic<int> turn{0};
  std::array<std::int64_t, 2> stamps{};
  std::jthread other([&] {
    for (int i = 0; i < 1000; ++i) {
      while (turn.load(std::memory_order_acquire) != 2 * i + 1) std::this_thread::yield();
      stamps[1] = theirs.now_after_reading();
      turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  for (int i = 0; i < 1000; ++i) {
    stamps[0] = ours.now();
    turn.store(2 * i + 1, std::memory_order_release);
    while (turn.load(std::memory_order_acquire) != 2 * i + 2) std::this_thread::yield();
    EXPECT_LE(stamps[0], stamps[1]);
    EXPECT_LE(stamps[1], ours.now_after_reading());
  }
}

}  // namespace
}  // namespace tensorbus
