// Random lies; the libFuzzer target of the same kind looks further.
// proves: B5.16
#include "bus/simulation/agent_liar.h"

#include <gtest/gtest.h>

#include "base/config.h"

namespace tensorbus::bus::simulation {
namespace {

TEST(AgentLiarTest, WhateverAgentsHearTheyLiveAndOthersNoticeNothing) {
  std::mt19937_64 random(7);
  const int lies = config::variable("TENSORBUS_TEST_LONG") ? 3'000 : 40;
  for (int i = 0; i < lies; ++i) {
    SCOPED_TRACE(i);
    const std::string bytes = fabric::random_bytes(random, 20 + random() % 200);
    ASSERT_NO_THROW({ ASSERT_TRUE(LiedTo(bytes).run()); });
  }
}

}  // namespace
}  // namespace tensorbus::bus::simulation
