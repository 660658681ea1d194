// Random lies of a process that was let in. The libFuzzer target of the same kind looks further.
#include "fabric/conformance/shm_liar.h"

#include <gtest/gtest.h>

#include "base/config.h"
#include "fabric/shm/fabric.h"

namespace tensorbus::fabric {
namespace {

TEST(ShmLiarTest, ABrokenPeerHarmsNobodyElse) {
  for (const bool read_process_memory : {true, false}) {
    Victim victim(make_shm_fabric({"victim", "secret", nullptr, read_process_memory}),
                  make_shm_fabric({"friend", "", nullptr, read_process_memory}));
    std::mt19937_64 random(7);
    const int liars = config::variable("TENSORBUS_TEST_LONG") ? 10'000 : 150;
    for (int i = 0; i < liars; ++i) {
      SCOPED_TRACE(i);
      ASSERT_NO_THROW(lie_through_shm(victim, random_bytes(random, 20 + random() % 400)));
    }
    EXPECT_GT(victim.believed, 5u) << "it tells no good lies";
  }
}

TEST(ShmLiarTest, APeerThatLeavesWithAPromiseIsLost) {
  Victim victim(make_shm_fabric({"victim", "secret", nullptr, true}),
                make_shm_fabric({"friend", "", nullptr, true}));
  {
    const std::string ones(64, '\1');
    Dice dice(ones);
    ShmLiar liar(victim, dice);
    ASSERT_NE(liar.as_peer(), nullptr);
    liar.promise_an_inlet();
    victim.poll();
  }
  const Deadline patience = Deadline::after(std::chrono::seconds(20));
  while (victim.party.losses.empty() && !patience.expired()) victim.poll();
  EXPECT_EQ(victim.party.losses.size(), 1u);
  EXPECT_TRUE(victim.party.messages.empty());
}

}  // namespace
}  // namespace tensorbus::fabric
