// Random lies of a process that was let in. The libFuzzer target of the same kind looks further.
#include "fabric/conformance/ucx_liar.h"

#include <gtest/gtest.h>

#include "base/config.h"
#include "fabric/ucx/ucx.h"

namespace tensorbus::fabric::ucx {
namespace {

TEST(UcxLiarTest, ABrokenPeerHarmsNobodyElse) {
  UcxOptions options;
  options.identity = {"here", 1, 1, random_id(), "victim"};
  options.secret = "secret";
  UcxOptions friendly = options;
  friendly.identity = {"here", 2, 1, random_id(), "friend"};
  Victim victim(make_ucx_fabric(options), make_ucx_fabric(friendly));
  LiarStation station;
  std::mt19937_64 random(7);
  const int liars = config::variable("TENSORBUS_TEST_LONG") ? 20'000 : 400;
  for (int i = 0; i < liars; ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_THROW(lie_through_ucx(station, victim, random_bytes(random, 20 + random() % 400)));
  }
  EXPECT_GT(victim.believed, 10u) << "it tells no good lies";
}

}  // namespace
}  // namespace tensorbus::fabric::ucx
