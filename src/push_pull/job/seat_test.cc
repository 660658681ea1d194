#include "push_pull/job/seat.h"

#include <gtest/gtest.h>

#include <vector>

namespace tensorbus::push_pull {
namespace {

// proves: P12
TEST(SeatTest, NodesThatMayRunOnOurCoresNeedOneEach) {
  const Seat own{"here", {{0b0011}}};
  const Seat elsewhere{"there", {{0b0011}}};
  const Seat on_other_cores{"here", {{0b1100}}};
  EXPECT_TRUE(has_cores_for(own, std::vector{own, own, elsewhere, on_other_cores}));
  EXPECT_FALSE(has_cores_for(own, std::vector{own, own, own}));
  const Seat on_all{"here", {{0b1111}}};
  EXPECT_FALSE(has_cores_for(own, std::vector{own, own, on_all}));
  const Seat pinned{"here", {{0b0001}}};
  EXPECT_TRUE(has_cores_for(pinned, std::vector{pinned, on_other_cores}));
}

}  // namespace
}  // namespace tensorbus::push_pull
