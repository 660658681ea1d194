#include "os/process/awake.h"

#include <gtest/gtest.h>

#include <thread>

namespace tensorbus::os {
namespace {

TEST(AwakeTest, WhatComesSoonIsSeen) {
  Awake awake;
  EXPECT_TRUE(awake.until([] { return true; }));
}

TEST(AwakeTest, WhatDoesNotComeIsNotWaitedForLong) {
  Awake awake;
  int looks = 0;
  EXPECT_FALSE(awake.until([&] { return ++looks < 0; }));
  EXPECT_GT(looks, 0);
}

// Looks that take long stand for a core that comes back late: the next look sees the time.
TEST(AwakeTest, WhoseCoreComesBackLateSleepsAtOnceFromThenOn) {
  Awake awake;
  const auto hogged = [] {
    std::this_thread::sleep_for(2 * Awake::late);
    return false;
  };
  for (int i = 0; i < 10; ++i) awake.until(hogged);
  int looks = 0;
  EXPECT_FALSE(awake.until([&] { return ++looks > 0; }));
  EXPECT_EQ(looks, 0);
}

}  // namespace
}  // namespace tensorbus::os
