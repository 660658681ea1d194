#include "store/server/lease_clock.h"

#include <gtest/gtest.h>

namespace tensorbus::store {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration time) { return TimePoint(time); }

TEST(LeaseClockTest, AThreadThatSleepsAsItMeantToLosesNothing) {
  LeaseClock clock(at(0s));
  clock.look(at(1s), 1s);
  clock.look(at(1050ms), 0s);
  clock.look(at(2050ms), 950ms);
  EXPECT_EQ(clock.at(at(3s)), at(3s));
}

TEST(LeaseClockTest, AStallInASleepIsGivenBack) {
  LeaseClock clock(at(0s));
  clock.look(at(5s), 1s);
  // The stall may have begun at once, so no more than a moment of the second counts.
  EXPECT_LE(clock.last(), at(100ms));
  EXPECT_EQ(clock.at(at(6s)), clock.last() + 1s);
}

TEST(LeaseClockTest, AStallAtWorkIsGivenBack) {
  LeaseClock clock(at(0s));
  clock.look(at(1s), 1s);
  clock.look(at(6s), 0s);
  EXPECT_LE(clock.last(), at(1100ms));
}

TEST(LeaseClockTest, ItGoesOnAlsoWhereEveryTurnIsLong) {
  LeaseClock clock(at(0s));
  for (int turn = 1; turn <= 100; ++turn) clock.look(at(turn * 1s), 0s);
  EXPECT_GE(clock.last(), at(10s));
}

}  // namespace
}  // namespace tensorbus::store
