#include "base/seldom.h"

#include <gtest/gtest.h>

namespace tensorbus {
namespace {

using namespace std::chrono_literals;

TEST(SeldomTest, TheFirstIsToldAndThenOneInAWhile) {
  Seldom seldom(10s);
  EXPECT_TRUE(seldom.due(TimePoint(1s)));
  EXPECT_FALSE(seldom.due(TimePoint(1s)));
  EXPECT_FALSE(seldom.due(TimePoint(10s)));
  EXPECT_TRUE(seldom.due(TimePoint(11s)));
  EXPECT_FALSE(seldom.due(TimePoint(20s)));
}

}  // namespace
}  // namespace tensorbus
