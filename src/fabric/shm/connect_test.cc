// Connections that begin at an unusual moment.
#include <gtest/gtest.h>

#include "fabric/conformance/party.h"
#include "fabric/conformance/test_clock.h"
#include "fabric/shm/fabric.h"

namespace tensorbus::fabric {
namespace {

using std::chrono::seconds;

TEST(ShmConnectTest, WhoeverCameBeforeTheFirstPollIsLetIn) {
  TestClock clock;
  Party owner{make_shm_fabric({"owner", "secret", nullptr, true, &clock})};
  Party early{make_shm_fabric({"early", "", nullptr})};
  const auto peer = early->connect(owner->address(), "secret", Deadline::after(seconds(20)));
  clock.advance(seconds(60));  // the owner has other things to do
  const Deadline patience = Deadline::after(seconds(20));
  while (owner.ups.empty() || early.ups.empty()) {
    ASSERT_FALSE(patience.expired()) << "nothing happens";
    owner.poll();
    early.poll();
    ASSERT_TRUE(early.losses.empty()) << early.losses.front().reason.message;
  }
  EXPECT_TRUE(peer->up());
}

}  // namespace
}  // namespace tensorbus::fabric
