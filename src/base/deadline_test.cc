#include "tensorbus/deadline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/clock.h"
#include "tensorbus/status.h"

namespace tensorbus {
namespace {

// proves: K8
TEST(Deadline, IsNeverEarly) {
  for (const double seconds : {0.0, 1e-9, 0.001, 0.25}) {
    const TimePoint before = now();
    const Deadline deadline = Deadline::after_seconds(seconds);
    EXPECT_GE(deadline.at() - before, std::chrono::duration<double>(seconds));
  }
}

TEST(Deadline, NeverDoesNotExpire) {
  const Deadline never = Deadline::never();
  EXPECT_FALSE(never.expired());
  EXPECT_EQ(never.remaining(), Duration::max());
  EXPECT_TRUE(Deadline::after(Duration::max()).is_never());
  EXPECT_TRUE(Deadline::after_seconds(std::numeric_limits<double>::infinity()).is_never());
  EXPECT_TRUE(Deadline::after_seconds(1e300).is_never());
}

TEST(Deadline, ZeroIsExpiredAtOnce) {
  const Deadline past = Deadline::after_seconds(0);
  EXPECT_TRUE(past.expired());
  EXPECT_EQ(past.remaining(), Duration::zero());
}

TEST(Deadline, RefusesWhatIsNoTime) {
  for (const double bad : {-1.0, -1e-12, std::nan("")}) {
    try {
      Deadline::after_seconds(bad);
      ADD_FAILURE() << bad << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
    }
  }
}

TEST(Deadline, SoonerIsTheEarlierOne) {
  const Deadline soon = Deadline::after_seconds(1);
  EXPECT_EQ(sooner(soon, Deadline::never()), soon);
  EXPECT_EQ(sooner(Deadline::never(), soon), soon);
}

}  // namespace
}  // namespace tensorbus
