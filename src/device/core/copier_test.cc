#include "device/core/copier.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/testing/calls.h"
#include "device/core/moments.h"
#include "device/core/open_copies.h"
#include "device/fake/device.h"

namespace tensorbus::device {
namespace {

TEST(Copier, ScratchThatWasGivenBackIsUsedAgain) {
  FakeDevice device({0}, 1);
  Copier copier(device);
  auto first = copier.scratch(100'000);
  std::memset(first.get(), 1, 100'000);
  std::byte* const where = first.get();
  const auto second = copier.scratch(100'000);
  EXPECT_NE(second.get(), where) << "the first is in use";
  first.reset();
  EXPECT_EQ(copier.scratch(70'000).get(), where);
}

TEST(Copiers, OpenADeviceOnceAndTellItsDescriptor) {
  FakeDevice device({3}, 1);
  int opened = 0;
  std::vector<int> descriptors;
  Copiers copiers(
      [&](Id id) -> Device& {
        EXPECT_EQ(id, Id{3});
        ++opened;
        return device;
      },
      [&](int fd) { descriptors.push_back(fd); });
  Copier& copier = copiers.of({3});
  EXPECT_EQ(&copiers.of({3}), &copier);
  EXPECT_EQ(opened, 1);
  EXPECT_EQ(descriptors, std::vector<int>{copier.queue().fd()});
}

TEST(OpenCopies, AreOverWhenAllMarksHavePassed) {
  OpenCopies copies;
  EXPECT_TRUE(copies.over()) << "there are none";
  const Mark first;
  const Mark second;
  copies.add(first);
  copies.add(second);
  second.end({});
  EXPECT_FALSE(copies.over());
  EXPECT_FALSE(copies.wait(Deadline::after(std::chrono::milliseconds(1))));
  first.end({});
  EXPECT_TRUE(copies.over());
}

TEST(OpenCopies, OneThatFailedIsToldOnceAndTheOthersAreStillWaitedFor) {
  OpenCopies copies;
  const Mark open;
  const Mark failed;
  copies.add(open);
  copies.add(failed);
  failed.end({Code::failed, "the device is on fire"});
  EXPECT_EQ(code_of([&] { copies.over(); }), Code::failed);
  EXPECT_FALSE(copies.ended());
  open.end({Code::failed, "that one, too"});
  EXPECT_TRUE(copies.ended());
}

TEST(OpenCopies, WhoDropsThemWaitsForTheDevice) {
  const Mark mark;
  bool ended = false;
  std::thread device;
  {
    OpenCopies copies;
    copies.add(mark);
    device = std::thread([&] {
      ended = true;
      mark.end({});
    });
  }
  EXPECT_TRUE(ended);
  device.join();
}

TEST(Moments, AreWaitedForUntilTheDeadline) {
  FakeDevice device({0}, 1);
  const Stream stream = device.make_stream();
  device.hold(stream);
  const Moments moments{{&device, device.moment(stream)}};
  EXPECT_EQ(
      code_of([&] { wait_until_passed(moments, Deadline::after(std::chrono::milliseconds(1))); }),
      Code::timeout);
}

}  // namespace
}  // namespace tensorbus::device
