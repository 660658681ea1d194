// What every implementation of a device keeps: order, bytes, ends, death.
#include "device/core/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "base/testing/calls.h"
#include "device/conformance/fake_bench.h"
#include "device/conformance/standin.h"

namespace tensorbus::device {
namespace {

struct Implementation {
  const char* name;
  std::function<std::unique_ptr<Bench>()> make;
};

// A bench that keeps its driver.
std::unique_ptr<Bench> on_standin(const Standin::Variables& variables) {
  static std::unique_ptr<Standin> driver;
  driver = std::make_unique<Standin>(variables);
  return std::make_unique<StandinBench>(*driver, driver->functions());
}

class DeviceTest : public testing::TestWithParam<Implementation> {
 protected:
  // The user writes on a stream, and nobody has waited for that.
  std::byte* written(Stream stream, const Bytes& bytes) {
    std::byte* const memory = bench_->allocate(bytes.size());
    bench_->write(stream, memory, bytes);
    return memory;
  }
  Mark copy(Queue& queue, const std::byte* from, std::byte* to, std::size_t bytes) {
    return queue.copy({Block{from, to, bytes}});
  }
  Device& device() { return bench_->device(); }

  const std::unique_ptr<Bench> bench_ = GetParam().make();
};

Bytes random_bytes(std::size_t size, unsigned seed = 1) {
  std::minstd_rand dice(seed);
  Bytes bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(dice() >> 8);
  return bytes;
}

// Pinned, so that the device copies into it while the host goes on.
struct Window {
  Window(Device& device, std::size_t size)
      : bytes(size), pin(device.pin({.bytes = bytes, .keeper = nullptr})) {}

  Bytes bytes;
  std::shared_ptr<const Pin> pin;
};

// proves: V2.1
TEST_P(DeviceTest, TheHostGetsWhatTheStreamHadBeenGiven) {
  const Stream stream = bench_->make_stream();
  const Bytes bytes = random_bytes(10'000);
  const std::byte* const memory = written(stream, bytes);
  Window window(device(), bytes.size());
  const auto queue = device().open_queue();
  queue->wait(device().moment(stream));
  const Mark mark = copy(*queue, memory, window.bytes.data(), bytes.size());
  ASSERT_TRUE(bench_->finish(mark));
  EXPECT_EQ(window.bytes, bytes);
}

TEST_P(DeviceTest, TheDeviceGetsWhatTheHostHas) {
  Window window(device(), 10'000);
  std::ranges::copy(random_bytes(window.bytes.size()), window.bytes.begin());
  std::byte* const memory = bench_->allocate(window.bytes.size());
  const auto queue = device().open_queue();
  ASSERT_TRUE(bench_->finish(copy(*queue, window.bytes.data(), memory, window.bytes.size())));
  EXPECT_EQ(bench_->read(memory, window.bytes.size()), window.bytes);
}

// proves: V2.1
TEST_P(DeviceTest, ATargetIsWrittenAfterWhatItsStreamHadBeenGiven) {
  const Stream stream = bench_->make_stream();
  bench_->hold(stream);
  std::byte* const target = written(stream, Bytes(1000, std::byte{1}));
  Window window(device(), 1000);
  const auto queue = device().open_queue();
  queue->wait(device().moment(stream));
  const Mark mark = copy(*queue, window.bytes.data(), target, 1000);
  bench_->let_go_on();
  EXPECT_FALSE(mark.passed());
  bench_->release(stream);
  ASSERT_TRUE(bench_->finish(mark));
  EXPECT_EQ(bench_->read(target, 1000), Bytes(1000));
}

TEST_P(DeviceTest, CopiesOfAQueueComeOneAfterTheOther) {
  const Bytes bytes = random_bytes(5000);
  Window first(device(), bytes.size());
  first.bytes = bytes;
  Window last(device(), bytes.size());
  std::byte* const memory = bench_->allocate(bytes.size());
  std::byte* const other = bench_->allocate(bytes.size());
  const auto queue = device().open_queue();
  copy(*queue, first.bytes.data(), memory, bytes.size());
  copy(*queue, memory, other, bytes.size());
  ASSERT_TRUE(bench_->finish(copy(*queue, other, last.bytes.data(), bytes.size())));
  EXPECT_EQ(last.bytes, bytes);
}

// proves: V2.1
TEST_P(DeviceTest, AWatchPassesWithItsMomentAndNotBefore) {
  const Stream stream = bench_->make_stream();
  bench_->hold(stream);
  const Bytes bytes = random_bytes(3000);
  const std::byte* const memory = written(stream, bytes);
  const auto queue = device().open_queue();
  const Mark mark = queue->watch(device().moment(stream));
  bench_->let_go_on();
  EXPECT_FALSE(mark.passed());
  bench_->release(stream);
  ASSERT_TRUE(bench_->finish(mark));
  EXPECT_EQ(bench_->read(memory, bytes.size()), bytes);
}

TEST_P(DeviceTest, AWatchDoesNotWaitForTheQueueNorTheQueueForIt) {
  const Stream slow = bench_->make_stream();
  const Stream quick = bench_->make_stream();
  bench_->hold(slow);
  const auto queue = device().open_queue();
  const Mark late = queue->watch(device().moment(slow));
  Window window(device(), 100);
  std::byte* const memory = bench_->allocate(100);
  EXPECT_TRUE(bench_->finish(copy(*queue, window.bytes.data(), memory, 100)));
  EXPECT_TRUE(bench_->finish(queue->watch(device().moment(quick))));
  EXPECT_FALSE(late.passed());
  bench_->release(slow);
  EXPECT_TRUE(bench_->finish(late));
}

// proves: V1.3
TEST_P(DeviceTest, AQueueThatWaitsHoldsNoOtherUp) {
  const Stream slow = bench_->make_stream();
  bench_->hold(slow);
  Window window(device(), 100);
  std::byte* const memory = bench_->allocate(100);
  std::byte* const other = bench_->allocate(100);
  const auto waiting = device().open_queue();
  waiting->wait(device().moment(slow));
  const Mark late = copy(*waiting, window.bytes.data(), memory, 100);
  const auto quick = device().open_queue();
  EXPECT_TRUE(bench_->finish(copy(*quick, window.bytes.data(), other, 100)));
  EXPECT_FALSE(late.passed());
  bench_->release(slow);
  EXPECT_TRUE(bench_->finish(late));
}

// A block and where its rows go, checked against plain loops.
struct Strided {
  Bytes from;
  Bytes to;
  Block block;
};

Strided random_block(std::minstd_rand& dice) {
  const auto number = [&](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(dice()) % most;
  };
  const auto pitch_for = [&](const Block& block) {
    Pitch pitch;
    pitch.row = static_cast<std::int64_t>(block.bytes) + number(9) - 1;
    pitch.plane = pitch.row * block.rows + (number(2) - 1) * number(50);
    return pitch;
  };
  Block block{nullptr, nullptr, static_cast<std::size_t>(number(60)), number(20), number(5)};
  block.from_pitch = pitch_for(block);
  block.to_pitch = pitch_for(block);
  const auto span = [&](const Pitch& pitch) {
    return static_cast<std::size_t>(pitch.plane * block.planes + pitch.row);
  };
  return {random_bytes(span(block.from_pitch), static_cast<unsigned>(dice())),
          Bytes(span(block.to_pitch)), block};
}

Bytes expected_of(const Strided& given) {
  Bytes to = given.to;
  const Block& block = given.block;
  for (std::int64_t plane = 0; plane < block.planes; ++plane) {
    for (std::int64_t row = 0; row < block.rows; ++row) {
      std::memcpy(to.data() + plane * block.to_pitch.plane + row * block.to_pitch.row,
                  given.from.data() + plane * block.from_pitch.plane + row * block.from_pitch.row,
                  block.bytes);
    }
  }
  return to;
}

// proves: V3.1
TEST_P(DeviceTest, BlocksGoWhereTheirPitchesSay) {
  std::minstd_rand dice(3);
  const Stream stream = bench_->make_stream();
  const auto queue = device().open_queue();
  for (int i = 0; i < 20; ++i) {
    Strided given = random_block(dice);
    const Bytes expected = expected_of(given);
    std::byte* const from = written(stream, given.from);
    std::byte* const to = written(stream, given.to);
    given.block.from = from;
    given.block.to = to;
    queue->wait(device().moment(stream));
    ASSERT_TRUE(bench_->finish(queue->copy({given.block})));
    EXPECT_EQ(bench_->read(to, expected.size()), expected) << "block " << i;
  }
}

TEST_P(DeviceTest, NothingIsCopiedAtOnce) {
  const auto queue = device().open_queue();
  EXPECT_TRUE(bench_->finish(queue->copy({})));
  EXPECT_TRUE(bench_->finish(copy(*queue, nullptr, nullptr, 0)));
}

TEST_P(DeviceTest, TheDescriptorTellsThatAMarkHasPassed) {
  const auto queue = device().open_queue();
  const auto readable = [&] {
    pollfd told{queue->fd(), POLLIN, 0};
    return ::poll(&told, 1, 0) == 1;
  };
  EXPECT_FALSE(readable());
  ASSERT_TRUE(bench_->finish(queue->copy({})));
  bench_->let_go_on();
  EXPECT_TRUE(readable());
  queue->drain();
  EXPECT_FALSE(readable());
}

TEST_P(DeviceTest, WorkOfAQueueThatIsGoneGoesOn) {
  const Bytes bytes = random_bytes(5000);
  Window window(device(), bytes.size());
  const Stream stream = bench_->make_stream();
  const std::byte* const memory = written(stream, bytes);
  auto queue = device().open_queue();
  queue->wait(device().moment(stream));
  const Mark mark = copy(*queue, memory, window.bytes.data(), bytes.size());
  queue.reset();
  ASSERT_TRUE(bench_->finish(mark));
  EXPECT_EQ(window.bytes, bytes);
}

TEST_P(DeviceTest, AMomentCanBeDroppedOnceItIsWaitedFor) {
  const Stream stream = bench_->make_stream();
  const auto queue = device().open_queue();
  const Mark watched = queue->watch(device().moment(stream));
  for (int i = 0; i < 10; ++i) queue->wait(device().moment(stream));
  EXPECT_TRUE(bench_->finish(watched));
  EXPECT_TRUE(bench_->finish(queue->copy({})));
}

// proves: V1.3
TEST_P(DeviceTest, AStreamThatCapturesAGraphIsRefused) {
  const Stream stream = bench_->make_stream();
  bench_->set_capturing(stream, true);
  EXPECT_EQ(code_of([&] { device().moment(stream); }), Code::invalid_argument);
  bench_->set_capturing(stream, false);
  EXPECT_EQ(code_of([&] { device().moment(stream); }), Code::ok);
}

TEST_P(DeviceTest, AStreamOfAnotherDeviceIsRefused) {
  EXPECT_EQ(code_of([&] { device().moment({0x1234560}); }), Code::invalid_argument);
}

TEST_P(DeviceTest, PinnedMemoryIsLetGoWithItsPin) {
  auto memory = std::make_shared<Bytes>(4096);
  const std::weak_ptr<Bytes> look = memory;
  auto pin = device().pin({.bytes = *memory, .keeper = memory});
  memory.reset();
  const auto queue = device().open_queue();
  ASSERT_TRUE(bench_->finish(queue->copy({})));
  EXPECT_EQ(pin->state(), Pin::State::pinned);
  EXPECT_FALSE(look.expired());
  pin.reset();
  ASSERT_TRUE(bench_->finish(queue->copy({})));
  EXPECT_TRUE(look.expired());
}

// proves: V1.5
TEST_P(DeviceTest, ADeadDeviceFailsWhatWaitsAndAllThatComes) {
  const Stream stream = bench_->make_stream();
  bench_->hold(stream);
  Window window(device(), 100);
  const std::byte* const memory = bench_->allocate(100);
  const auto queue = device().open_queue();
  queue->wait(device().moment(stream));
  const Mark open = copy(*queue, memory, window.bytes.data(), 100);
  bench_->let_go_on();
  EXPECT_TRUE(device().health().ok());
  bench_->kill();
  const auto fails = [&](const Mark& mark) { return code_of([&] { bench_->finish(mark); }); };
  EXPECT_EQ(fails(open), Code::failed);
  EXPECT_THAT(device().health().message, testing::HasSubstr("restart the process"));
  EXPECT_EQ(fails(copy(*queue, memory, window.bytes.data(), 100)), Code::failed);
  EXPECT_EQ(fails(device().open_queue()->copy({})), Code::failed);
  EXPECT_EQ(code_of([&] { device().moment(stream); }), Code::failed);
  bench_->release(stream);
}

INSTANTIATE_TEST_SUITE_P(
    All, DeviceTest,
    testing::Values(Implementation{"fake", [] { return std::make_unique<FakeBench>(1); }},
                    Implementation{"fake_2", [] { return std::make_unique<FakeBench>(2); }},
                    Implementation{"standin_lazy",
                                   [] {
                                     return on_standin({{"STANDIN_LAZY", "1"}});
                                   }},
                    Implementation{"standin_random",
                                   [] {
                                     return on_standin({{"STANDIN_SEED", "1"}});
                                   }},
                    Implementation{"standin_random_2",
                                   [] {
                                     return on_standin({{"STANDIN_SEED", "2"}});
                                   }}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace tensorbus::device
