// Only in builds without UCX.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fabric/route/select.h"
#include "fabric/ucx/ucx.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

TEST(NoUcx, TheNetworkFabricSaysThatItIsNotThereAndWhatToDo) {
  EXPECT_FALSE(has_ucx());
  try {
    make_ucx_fabric({});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("install libucx-dev"));
  }
}

TEST(NoUcx, NobodyIsReachedThroughIt) {
  EXPECT_THAT(own_reach("127.0.0.1").no_ucx, testing::HasSubstr("has no UCX"));
}

}  // namespace
}  // namespace tensorbus::fabric
