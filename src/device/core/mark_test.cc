#include "device/core/mark.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/testing/calls.h"

namespace tensorbus::device {
namespace {

TEST(Mark, PassesWhenItsWorkEndsAndSoDoItsCopies) {
  const Mark mark;
  const Mark copy = mark;
  EXPECT_FALSE(copy.passed());
  mark.end({});
  EXPECT_TRUE(copy.passed());
  EXPECT_TRUE(copy.wait(Deadline::never()));
}

TEST(Mark, OfWorkThatFailedThrowsItsError) {
  const Mark mark;
  mark.end({Code::failed, "the device is on fire"});
  EXPECT_EQ(code_of([&] { mark.passed(); }), Code::failed);
  EXPECT_EQ(code_of([&] { mark.wait(soon()); }), Code::failed);
}

TEST(Mark, AWaitEndsAtItsDeadlineAndWithTheWork) {
  const Mark mark;
  EXPECT_FALSE(mark.wait(Deadline::after(std::chrono::milliseconds(5))));
  std::thread worker([&] { mark.end({}); });
  EXPECT_TRUE(mark.wait(soon()));
  worker.join();
}

}  // namespace
}  // namespace tensorbus::device
