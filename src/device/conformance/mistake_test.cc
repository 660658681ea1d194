// Waits that are left out on purpose. A table of functions in which one wait does nothing stands
// for code that forgets it: in lazy mode the stand-in shows every one, every time.
#include <gtest/gtest.h>

#include "base/testing/calls.h"
#include "device/conformance/standin.h"

namespace tensorbus::device {
namespace {

constexpr std::size_t slot = 4096;

cuda::Result wait_for_nothing(cuda::Stream, cuda::Event, unsigned) { return cuda::success; }
cuda::Result say_that_it_is_over(cuda::Event) { return cuda::success; }

// The gather of a sender: what its stream wrote goes into a pinned window.
bool gathers_rightly(StandinBench& bench) {
  Bytes window(slot);
  const auto pin = bench.device().pin({.bytes = window});
  const Stream stream = bench.make_stream();
  std::byte* const memory = bench.allocate(slot);
  const Bytes bytes(slot, std::byte{42});
  bench.write(stream, memory, bytes);
  const auto queue = bench.device().open_queue();
  queue->wait(bench.device().moment(stream));
  const Mark mark = queue->copy({Block{memory, window.data(), slot}});
  const bool ended = mark.wait(soon());
  const bool right = ended && window == bytes;
  bench.close_device();  // while the window is there
  return right;
}

// The offer of a sender: when it is known that its stream has written, the memory has the bytes.
bool offers_rightly(StandinBench& bench) {
  const Stream stream = bench.make_stream();
  std::byte* const memory = bench.allocate(slot);
  const Bytes bytes(slot, std::byte{42});
  bench.write(stream, memory, bytes);
  const auto queue = bench.device().open_queue();
  return queue->watch(bench.device().moment(stream)).wait(soon()) &&
         bench.read(memory, slot) == bytes;
}

// The scatter of a receiver: its window is used again as soon as the copy is over.
bool scatters_rightly(StandinBench& bench) {
  Bytes window(slot, std::byte{42});
  const auto pin = bench.device().pin({.bytes = window});
  std::byte* const memory = bench.allocate(slot);
  const auto queue = bench.device().open_queue();
  const bool ended = queue->copy({Block{window.data(), memory, slot}}).wait(soon());
  std::ranges::fill(window, std::byte{7});
  queue->copy({Block{memory, memory, 0}}).wait(soon());
  bench.let_go_on();
  const bool right = ended && bench.read(memory, slot) == Bytes(slot, std::byte{42});
  bench.close_device();
  return right;
}

// The target of a receiver: its stream still writes the old bytes.
bool orders_targets_rightly(StandinBench& bench) {
  Bytes window(slot, std::byte{42});
  const auto pin = bench.device().pin({.bytes = window});
  const Stream stream = bench.make_stream();
  bench.hold(stream);
  std::byte* const memory = bench.allocate(slot);
  bench.write(stream, memory, Bytes(slot, std::byte{1}));
  const auto queue = bench.device().open_queue();
  queue->wait(bench.device().moment(stream));
  const Mark mark = queue->copy({Block{window.data(), memory, slot}});
  bench.let_go_on();
  bench.release(stream);
  const bool ended = mark.wait(soon()) && queue->watch(bench.device().moment(stream)).wait(soon());
  const bool right = ended && bench.read(memory, slot) == Bytes(slot, std::byte{42});
  bench.close_device();
  return right;
}

struct Case {
  const char* name;
  bool (*does_rightly)(StandinBench&);
  void (*forget)(cuda::Functions&);
};

class Mistake : public testing::TestWithParam<Case> {
 protected:
  static bool holds(bool forgets) {
    const Standin driver(Standin::Variables{{"STANDIN_LAZY", "1"}});
    cuda::Functions functions = driver.functions();
    if (forgets) GetParam().forget(functions);
    StandinBench bench(driver, functions);
    return GetParam().does_rightly(bench);
  }
};

// proves: V4.1
TEST_P(Mistake, IsSeenInLazyModeEveryTime) {
  for (int run = 0; run < 10; ++run) EXPECT_FALSE(holds(true)) << "run " << run;
}

TEST_P(Mistake, IsNotSeenWhereItIsNotMade) {
  for (int run = 0; run < 10; ++run) EXPECT_TRUE(holds(false)) << "run " << run;
}

void forget_order(cuda::Functions& functions) { functions.cuStreamWaitEvent = wait_for_nothing; }
void forget_end(cuda::Functions& functions) { functions.cuEventQuery = say_that_it_is_over; }

INSTANTIATE_TEST_SUITE_P(
    All, Mistake,
    testing::Values(
        Case{"gather_before_the_stream_has_written", gathers_rightly, forget_order},
        Case{"window_given_on_before_the_gather_is_over", gathers_rightly, forget_end},
        Case{"offer_before_the_stream_has_written", offers_rightly, forget_end},
        Case{"window_used_again_before_the_scatter_is_over", scatters_rightly, forget_end},
        Case{"target_written_before_its_stream_is_through", orders_targets_rightly, forget_order}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace tensorbus::device
