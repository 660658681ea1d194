// The check of a machine passes on a driver that does right, and finds a driver that does not.
#include "device/cuda/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/calls.h"
#include "device/conformance/standin.h"

namespace tensorbus::device {
namespace {

const Standin::Variables lazy = {{"STANDIN_LAZY", "1"}, {"STANDIN_DELAY_US", "0"}};

std::vector<std::string> failures_of(const cuda::Functions& functions) {
  cuda::initialise(functions);
  std::vector<std::string> failed;
  for (const cuda::Check& check : cuda::check_device(functions, {0}, soon())) {
    if (!check.status.ok()) failed.push_back(check.name);
  }
  return failed;
}

TEST(CudaCheck, PassesAndLeavesNothingBehind) {
  const Standin driver(lazy);
  EXPECT_THAT(failures_of(driver.functions()), testing::IsEmpty());
  const StandinCounts left = driver.counts();
  EXPECT_EQ(left.streams + left.events + left.blocks + left.pinned + left.retained, 0U);
}

TEST(CudaCheck, FindsADriverThatDoesNotKeepTheOrder) {
  const Standin driver(lazy);
  cuda::Functions functions = driver.functions();
  functions.cuStreamWaitEvent = [](cuda::Stream, cuda::Event, unsigned) { return cuda::success; };
  EXPECT_THAT(failures_of(functions), testing::ElementsAre("order after a stream"));
}

TEST(CudaCheck, SaysWhatCouldNotBeDone) {
  Standin::Variables variables = lazy;
  variables["STANDIN_FAIL"] = "cuMemHostRegister:1:2";
  const Standin pageable(variables);
  EXPECT_THAT(failures_of(pageable.functions()), testing::ElementsAre("pinned memory"));
  variables["STANDIN_MEMORY_MB"] = "1";
  const Standin little(variables);
  EXPECT_THAT(failures_of(little.functions()), testing::ElementsAre("context"));
}

}  // namespace
}  // namespace tensorbus::device
