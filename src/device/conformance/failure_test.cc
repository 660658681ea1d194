// The driver fails: each function once, for a while, for good; and what is left then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>

#include "base/testing/calls.h"
#include "device/conformance/standin.h"
#include "os/testing/quiet_fork.h"

namespace tensorbus::device {
namespace {

using testing::HasSubstr;

constexpr std::size_t size = 4096;
const Standin::Variables quick = {{"STANDIN_DELAY_US", "0"}};

Standin::Variables failing(const std::string& what) {
  Standin::Variables variables = quick;
  variables["STANDIN_FAIL"] = what;
  return variables;
}

// A device that bytes go to and come back from.
struct Journey {
  explicit Journey(const Standin& driver, const cuda::Options& options = {})
      : device(cuda::make(driver.functions(), {0}, options)) {}

  // To the device and back, through everything that there is. The error that it ends with.
  Status run() {
    try {
      const auto pin = device->pin({.bytes = window});
      const auto queue = device->open_queue();
      const auto moment = device->moment({0});
      queue->wait(moment);
      const bool watched = queue->watch(moment).wait(soon());
      std::ranges::fill(window, std::byte{42});
      const bool there = queue->copy({Block{window.data(), memory(), size}}).wait(soon());
      std::ranges::fill(window, std::byte{0});
      const bool back = queue->copy({Block{memory(), window.data(), size}}).wait(soon());
      EXPECT_TRUE(watched && there && back) << "hangs";
      EXPECT_EQ(window, Bytes(size, std::byte{42})) << "wrong bytes without an error";
      return {};
    } catch (...) {
      return current_exception_status();
    }
  }
  std::byte* memory() const { return reinterpret_cast<std::byte*>(allocated); }

  cuda::Pointer allocated = 0;
  Bytes window = Bytes(size);
  std::unique_ptr<Device> device;
};

// Memory of the user's.
class User {
 public:
  explicit User(const Standin& driver) : functions_(driver.functions()) {
    functions_.cuInit(0);
    functions_.cuDevicePrimaryCtxRetain(&context_, 0);
    functions_.cuCtxPushCurrent(context_);
    functions_.cuMemAlloc(&memory_, size);
    functions_.cuCtxPopCurrent(nullptr);
  }
  ~User() {
    functions_.cuCtxPushCurrent(context_);
    functions_.cuMemFree(memory_);
    functions_.cuCtxPopCurrent(nullptr);
    functions_.cuDevicePrimaryCtxRelease(0);
  }
  cuda::Pointer memory() const { return memory_; }

 private:
  const cuda::Functions functions_;
  cuda::Context context_ = nullptr;
  cuda::Pointer memory_ = 0;
};

const std::vector<const char*>& all_functions() {
  static const std::vector<const char*> names = {
#define TENSORBUS_NAME(name, parameters) #name,
      TENSORBUS_CUDA_FUNCTIONS(TENSORBUS_NAME)
#undef TENSORBUS_NAME
  };
  return names;
}

// What a device does when the n-th call of one function fails: it works, or says that it does not.
Status outcome_of(const std::string& failure) {
  try {
    const Standin driver(failing(failure));
    const User user(driver);
    if (user.memory() == 0) return {};  // the user's own call, not ours
    Journey journey(driver);
    journey.allocated = user.memory();
    return journey.run();
  } catch (...) {
    return current_exception_status();
  }
}

class EveryFunction : public testing::TestWithParam<int> {};

// proves: V4.2
TEST_P(EveryFunction, ThatFailsOnceGivesTheBytesOrAnErrorAndNeverHangs) {
  for (const char* name : all_functions()) {
    for (int call = 1; call <= 4; ++call) {
      const std::string failure =
          std::string(name) + ":" + std::to_string(call) + ":" + std::to_string(GetParam());
      SCOPED_TRACE(failure);
      const Status status = outcome_of(failure);
      EXPECT_TRUE(status.ok() || !status.message.empty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, EveryFunction,
                         testing::Values(cuda::invalid_value, cuda::out_of_memory,
                                         cuda::not_supported, cuda::deinitialized,
                                         cuda::illegal_address, cuda::unknown),
                         [](const auto& each) { return "code_" + std::to_string(each.param); });

// The event of some work shows that the work is over before the driver comes to ring for it, which
// a stream that is to be destroyed need not prevent.
TEST(DeviceFailure, TheDriverMayRingWhenTheDeviceIsGone) {
  Standin::Variables late = failing("cuStreamDestroy:1:2,cuStreamDestroy:2:2");
  late["STANDIN_DELAY_US"] = "500";
  for (int time = 0; time < 100; ++time) {
    const Standin driver(late);
    const User user(driver);
    Journey journey(driver);
    journey.allocated = user.memory();
    EXPECT_EQ(journey.run(), Status{});
  }
}

TEST(DeviceFailure, AFailedCopyNamesTheDeviceAndTheCauseAndHarmsNoOther) {
  const Standin driver(failing("cuMemcpy2DAsync:1:1"));
  const User user(driver);
  Journey journey(driver);
  journey.allocated = user.memory();
  const Status status = journey.run();
  EXPECT_EQ(status.code, Code::failed);
  EXPECT_THAT(status.message, HasSubstr("cuda:0"));
  EXPECT_THAT(status.message, HasSubstr("CUDA_ERROR_INVALID_VALUE"));
  EXPECT_THAT(status.message, HasSubstr("freed or unmapped"));
  EXPECT_EQ(journey.run(), Status{});
}

TEST(DeviceFailure, WithoutItsOrderNothingIsCopied) {
  const Standin driver(failing("cuStreamWaitEvent:1:2"));
  const User user(driver);
  Journey journey(driver);
  journey.allocated = user.memory();
  EXPECT_EQ(journey.run().code, Code::failed);
  EXPECT_EQ(driver.calls("cuMemcpy2DAsync"), 0);
  EXPECT_EQ(journey.run(), Status{}) << "another queue has its order";
}

TEST(DeviceFailure, WithoutEventsTheStreamIsAskedForItsEnd) {
  const Standin driver(failing("cuEventCreate:2:2,cuEventCreate:3:2"));
  const User user(driver);
  Journey journey(driver);
  journey.allocated = user.memory();
  EXPECT_EQ(journey.run(), Status{});
  EXPECT_GT(driver.calls("cuStreamQuery"), 0);
}

// proves: V1.5
TEST(DeviceFailure, AfterAStickyErrorNoCallIsMade) {
  const Standin driver(quick);
  const User user(driver);
  Journey journey(driver);
  journey.allocated = user.memory();
  ASSERT_EQ(journey.run(), Status{});
  driver.kill_context(0, cuda::illegal_address);
  // The device's thread finds it, so that no two threads find it at once.
  EXPECT_EQ(code_of([&] { journey.device->open_queue()->copy({}).wait(soon()); }), Code::failed);
  for (int i = 0; i < 3; ++i) {
    const Status status = journey.run();
    EXPECT_EQ(status.code, Code::failed);
    EXPECT_THAT(status.message, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
    EXPECT_THAT(status.message, HasSubstr("restart the process"));
  }
  journey.device.reset();
  EXPECT_EQ(driver.counts().after_death, 0U);
}

// proves: V1.5
TEST(DeviceFailure, ADeadDeviceLeavesTheOthersAlone) {
  const Standin driver(quick);
  const auto first = cuda::make(driver.functions(), {0}, {});
  const auto second = cuda::make(driver.functions(), {1}, {});
  driver.kill_context(0, cuda::launch_failed);
  EXPECT_EQ(code_of([&] { first->open_queue()->copy({}).wait(soon()); }), Code::failed);
  EXPECT_TRUE(second->open_queue()->copy({}).wait(soon()));
  EXPECT_TRUE(second->health().ok());
}

// proves: V3.1
TEST(DeviceFailure, MemoryThatCannotBePinnedIsCopiedAllTheSame) {
  const Standin driver(failing("cuMemHostRegister:1:2"));
  const User user(driver);
  Journey journey(driver);
  journey.allocated = user.memory();
  EXPECT_EQ(journey.run(), Status{});
  EXPECT_EQ(driver.calls("cuMemHostUnregister"), 0);
}

TEST(DeviceFailure, TheBudgetOfPinnedMemoryIsKeptAndGivenBack) {
  const Standin driver(quick);
  const auto device = cuda::make(driver.functions(), {0}, {.pinned_bytes = size});
  const auto queue = device->open_queue();
  const auto settled = [&] { return queue->copy({}).wait(soon()); };
  Bytes one(size);
  Bytes two(size);
  auto first = device->pin({.bytes = one});
  auto second = device->pin({.bytes = two});
  ASSERT_TRUE(settled());
  EXPECT_EQ(first->state(), Pin::State::pinned);
  EXPECT_EQ(second->state(), Pin::State::pageable);
  const auto beside = device->pin({.bytes = std::span(two).first(16), .in_budget = false});
  first.reset();
  second.reset();
  const auto again = device->pin({.bytes = one});
  ASSERT_TRUE(settled());
  EXPECT_EQ(beside->state(), Pin::State::pinned);
  EXPECT_EQ(again->state(), Pin::State::pinned);
}

TEST(DeviceFailure, MemoryThatSomebodyElseHasPinnedStaysPinned) {
  const Standin driver(quick);
  const auto first = cuda::make(driver.functions(), {0}, {});
  const auto second = cuda::make(driver.functions(), {1}, {});
  Bytes memory(size);
  const auto pin = first->pin({.bytes = memory});
  ASSERT_TRUE(first->open_queue()->copy({}).wait(soon()));
  auto other = second->pin({.bytes = memory});
  const auto queue = second->open_queue();
  ASSERT_TRUE(queue->copy({}).wait(soon()));
  EXPECT_EQ(other->state(), Pin::State::pinned);
  other.reset();
  ASSERT_TRUE(queue->copy({}).wait(soon()));
  EXPECT_EQ(driver.counts().pinned, 1U);
}

TEST(DeviceFailure, MemoryThatIsMappedForReadingIsPinnedSo) {
  const Standin driver(quick);
  const auto device = cuda::make(driver.functions(), {0}, {});
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const std::span bytes(static_cast<std::byte*>(mapped), size);
  const auto wrong = device->pin({.bytes = bytes});
  const auto right = device->pin({.bytes = bytes, .read_only = true});
  ASSERT_TRUE(device->open_queue()->copy({}).wait(soon()));
  EXPECT_EQ(wrong->state(), Pin::State::pageable);
  EXPECT_EQ(right->state(), Pin::State::pinned);
}

TEST(DeviceFailure, ADeviceLeavesNothingBehind) {
  const Standin driver(quick);
  {
    Journey journey(driver);
    const User user(driver);
    journey.allocated = user.memory();
    ASSERT_EQ(journey.run(), Status{});
    ASSERT_EQ(journey.run(), Status{});
    journey.device.reset();
  }
  const StandinCounts left = driver.counts();
  EXPECT_EQ(left.streams + left.events + left.pinned + left.retained, 0U);
}

// proves: V1.5
TEST(DeviceFailure, InAForkedChildACallThrowsAndDroppingDoesNothing) {
  const Standin driver(quick);
  auto device = cuda::make(driver.functions(), {0}, {});
  auto queue = device->open_queue();
  Bytes memory(size);
  auto pin = device->pin({.bytes = memory});
  auto moment = device->moment({0});
  ASSERT_TRUE(queue->copy({}).wait(soon()));
  EXPECT_TRUE(os::holds_in_child([&] {
    const bool refused = code_of([&] { queue->copy({}); }) == Code::failed &&
                         code_of([&] { device->moment({0}); }) == Code::failed &&
                         code_of([&] { device->pin({.bytes = memory}); }) == Code::failed;
    moment.reset();
    pin.reset();
    queue.reset();
    device.reset();
    return refused;
  }));
  EXPECT_TRUE(queue->copy({}).wait(soon())) << "the parent goes on";
}

// proves: V1.3
TEST(DeviceFailure, CapturesOfOtherThreadsAreNotSpoilt) {
  const Standin driver(quick);
  StandinBench bench(driver, driver.functions());
  const Stream stream = bench.make_stream();
  const Stream other = bench.make_stream();
  std::byte* const memory = bench.allocate(size);
  bench.set_capturing(stream, true);
  Bytes window(size);
  auto pin = bench.device().pin({.bytes = window});
  const auto queue = bench.device().open_queue();
  const auto moment = bench.device().moment(other);
  queue->wait(moment);
  EXPECT_TRUE(queue->watch(moment).wait(soon()));
  EXPECT_TRUE(queue->copy({Block{window.data(), memory, size}}).wait(soon()));
  pin.reset();
  EXPECT_TRUE(queue->copy({}).wait(soon()));
  EXPECT_NO_THROW(bench.set_capturing(stream, false));
}

TEST(DeviceFailure, AWaitEndsAtItsDeadlineAndTheMemoryStaysBorrowed) {
  const Standin driver(quick);
  StandinBench bench(driver, driver.functions());
  const Stream stream = bench.make_stream();
  bench.hold(stream);
  const auto queue = bench.device().open_queue();
  queue->wait(bench.device().moment(stream));
  const Mark mark = queue->copy({Block{bench.allocate(16), bench.allocate(16), 16}});
  EXPECT_FALSE(mark.wait(Deadline::after(std::chrono::milliseconds(20))));
  EXPECT_FALSE(mark.passed());
  bench.release(stream);
  EXPECT_TRUE(mark.wait(soon()));
}

}  // namespace
}  // namespace tensorbus::device
