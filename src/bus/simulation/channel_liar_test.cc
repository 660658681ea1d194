// Random lies; the libFuzzer targets of the same kind look further.
// proves: B5.14, B5.16
#include "bus/simulation/channel_liar.h"

#include <gtest/gtest.h>

#include <random>

#include "base/config.h"

namespace tensorbus::bus {
namespace {

int lies() { return config::variable("TENSORBUS_TEST_LONG") ? 20'000 : 200; }

TEST(ChannelLiarTest, WhateverAClientSaysOthersNoticeNothing) {
  DeceivedChannel channel;
  std::mt19937_64 random(7);
  for (int i = 0; i < lies(); ++i) {
    SCOPED_TRACE(i);
    const std::string bytes = fabric::random_bytes(random, 20 + random() % 200);
    ASSERT_NO_THROW({ ASSERT_TRUE(channel.lie(bytes)); });
  }
  EXPECT_GT(channel.accepted(), 50u) << "it tells no good lies";
}

TEST(ChannelLiarTest, AQueueThatHoldsAnythingIsReadOrRefused) {
  std::mt19937_64 random(7);
  std::size_t read = 0;
  for (int i = 0; i < lies() / 2; ++i) {
    SCOPED_TRACE(i);
    const std::string bytes = fabric::random_bytes(random, 20 + random() % 60);
    ASSERT_NO_THROW({ read += is_read(bytes) ? 1 : 0; });
  }
  EXPECT_GT(read, 0u);
}

}  // namespace
}  // namespace tensorbus::bus
