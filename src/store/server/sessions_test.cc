#include "store/server/sessions.h"

#include <gtest/gtest.h>

namespace tensorbus::store {
namespace {

using Kind = Sessions::Kind;
using std::chrono::seconds;

TimePoint at(int second) { return TimePoint(seconds(second)); }

// proves: K1
TEST(Sessions, ARequestIsKnownByItsSessionAndId) {
  Sessions sessions;
  sessions.remember("one", Kind::change, 1, "reply", at(0));
  ASSERT_NE(sessions.find("one", 1), nullptr);
  EXPECT_EQ(*sessions.find("one", 1), "reply");
  EXPECT_EQ(sessions.find("one", 2), nullptr);
  EXPECT_EQ(sessions.find("two", 1), nullptr);
}

TEST(Sessions, ChangesAndBarriersAreSettledApart) {
  Sessions sessions;
  sessions.remember("one", Kind::change, 1, "a", at(0));
  sessions.remember("one", Kind::barrier, 2, "", at(0));
  sessions.remember("one", Kind::change, 3, "c", at(0));
  sessions.settle("one", Kind::change, 3);
  EXPECT_EQ(sessions.find("one", 1), nullptr);
  EXPECT_NE(sessions.find("one", 2), nullptr);
  EXPECT_NE(sessions.find("one", 3), nullptr);
  sessions.settle("one", Kind::barrier, 4);
  EXPECT_EQ(sessions.find("one", 2), nullptr);
}

TEST(Sessions, WhatIsHeldIsCountedAndGivenBack) {
  Sessions sessions;
  sessions.remember("one", Kind::change, 1, std::string(1000, 'x'), at(0));
  sessions.remember("one", Kind::change, 1, std::string(9000, 'x'), at(0));
  EXPECT_GE(sessions.held("one"), 1000U);
  EXPECT_LT(sessions.held("one"), 2000U);
  sessions.settle("one", Kind::change, 2);
  EXPECT_EQ(sessions.held("one"), 0U);
  EXPECT_EQ(sessions.held("nobody"), 0U);
}

TEST(Sessions, ASessionIsForgottenLongAfterItsLastUse) {
  Sessions sessions;
  sessions.remember("one", Kind::change, 1, "a", at(0));
  sessions.remember("two", Kind::change, 1, "b", at(0));
  sessions.touch("one", at(10));
  sessions.forget_older_than(at(5));
  EXPECT_NE(sessions.find("one", 1), nullptr);
  EXPECT_EQ(sessions.find("two", 1), nullptr);
}

}  // namespace
}  // namespace tensorbus::store
