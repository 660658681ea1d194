// Memory that is taken back: gates, dropped regions, words.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "base/config.h"
#include "fabric/conformance/conformance.h"

namespace tensorbus::fabric {
namespace {

TEST_P(FabricTest, AReadThatTheGatePassedIsWithdrawn) {
  const TestTensor tensor = new_tensor(Dtype::int8, {12'000'000});
  const TestTensor target = new_tensor(Dtype::int8, {12'000'000});
  const auto region = owner_->expose(views({tensor}));
  Source source = attach(reader_, connect(), *region);
  // Before, at any moment during, and with a ticket that is still good.
  for (int polls = 0; polls < 8; ++polls) {
    source.ticket = region->gate().value();
    const OpId id = next_id();
    reader_->read(whole(source, {target}), id, never);
    for (int i = 0; i < polls; ++i) poll();
    const bool was_over = reader_.completion(id) != nullptr;
    region->gate().move_to(source.ticket + 1);
    const Completion done = finish(reader_, id);
    EXPECT_EQ(done.status.code, was_over ? Code::ok : Code::withdrawn) << done.status.message;
    if (!was_over) {
      EXPECT_NE(done.status.message.find("owner"), std::string::npos);
    }
  }
  source.ticket = region->gate().value();
  EXPECT_TRUE(read(reader_, whole(source, {target})).status.ok());
}

TEST_P(FabricTest, ADroppedRegionIsNotReadAnyMore) {
  const TestTensor tensor = new_tensor(Dtype::int8, {3'000'000});
  const TestTensor target = new_tensor(Dtype::int8, {3'000'000});
  auto region = owner_->expose(views({tensor}));
  const std::uint64_t number = region->number();
  const Source source = attach(reader_, connect(), *region);
  const OpId running = next_id();
  reader_->read(whole(source, {target}), running, never);
  region.reset();
  EXPECT_EQ(finish(reader_, running).status.code, Code::withdrawn);
  EXPECT_EQ(read(reader_, whole(source, {target})).status.code, Code::withdrawn);
  const OpId late = next_id();
  reader_->attach(*source.peer, number, late, never);
  EXPECT_EQ(finish(reader_, late).status.code, Code::withdrawn);
}

TEST_P(FabricTest, AWordIsSwappedOnceAndOnlyWhileTheGateIsOpen) {
  const TestTensor tensor = new_tensor(Dtype::int8, {4});
  const auto region = owner_->expose(views({tensor}));
  const auto peer = connect();
  const Source source = attach(reader_, peer, *region);
  const Word word = owner_->make_word(*accepted_, 17);
  const Word second = owner_->make_word(*accepted_, 99);
  EXPECT_NE(word.number, second.number);
  const auto swap = [&](std::uint64_t expected, std::uint64_t desired) {
    const OpId id = next_id();
    reader_->swap({source, word.number, expected, desired}, id, never);
    return finish(reader_, id);
  };
  EXPECT_EQ(swap(17, 18).value, 17u);
  EXPECT_EQ(word.value->load(), 18u);
  EXPECT_EQ(swap(17, 19).value, 18u);
  EXPECT_EQ(word.value->load(), 18u);
  if (const auto* seen = reader_->watch(*peer, word.number)) {
    EXPECT_EQ(seen->load(), 18u);
  }
  region->gate().move_to(1);
  EXPECT_EQ(swap(18, 20).status.code, Code::withdrawn);
  EXPECT_EQ(word.value->load(), 18u);
  EXPECT_EQ(second.value->load(), 99u);
}

// Agents end their words after they have learned of the loss.
TEST_P(FabricTest, AWordLivesAsLongAsItsPeerIsHeld) {
  connect();
  const std::shared_ptr<Peer> held = accepted_;
  const Word word = owner_->make_word(*held, 17);
  reader_.kill();
  until([&] { return !owner_.losses.empty(); });
  EXPECT_EQ(word.value->exchange(18), 17u);
  EXPECT_EQ(word.value->load(), 18u);
}

// The owner of the memory takes it back and rewrites it whenever it likes, on a thread of its own,
// and asks nobody. A read that is called ok is of one round, the one of its ticket.
TEST_P(FabricTest, ReadsAreNeverTornByAnOwnerThatRewrites) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the race is what this is about";
#endif
  const int rounds = config::variable("TENSORBUS_TEST_LONG") ? 20'000 : 2'000;
  constexpr std::int64_t size = 40'000;
  const TestTensor tensor = new_tensor(Dtype::int64, {size});
  const TestTensor target = new_tensor(Dtype::int64, {size});
  auto* const written = reinterpret_cast<std::uint64_t*>(tensor.memory.get());
  const auto* const read_back = reinterpret_cast<const std::uint64_t*>(target.memory.get());
  const auto region = owner_->expose(views({tensor}));
  Source source = attach(reader_, connect(), *region);
  std::atomic<std::uint64_t> offered{0};
  std::jthread writer([&](const std::stop_token& stop) {
    std::mt19937 random(2);
    for (std::uint64_t round = 1; !stop.stop_requested(); ++round) {
      region->gate().move_to(round);
      std::fill_n(written, size, round);
      offered.store(round, std::memory_order_release);
      const Deadline pause = Deadline::after(std::chrono::microseconds(random() % 1500));
      while (!pause.expired() && !stop.stop_requested()) {
      }
    }
  });
  int whole_ones = 0;
  int withdrawn = 0;
  const Deadline patience = Deadline::after(std::chrono::milliseconds(50) * rounds);
  for (int i = 0; i < rounds || whole_ones < 50 || withdrawn < 50; ++i) {
    ASSERT_FALSE(patience.expired()) << whole_ones << " whole, " << withdrawn << " withdrawn";
    source.ticket = offered.load(std::memory_order_acquire);
    const Completion done = read(reader_, whole(source, {target}));
    reader_.completions.clear();
    if (!done.status.ok()) {
      ASSERT_EQ(done.status.code, Code::withdrawn) << done.status.message;
      ++withdrawn;
      continue;
    }
    ++whole_ones;
    ASSERT_EQ(std::count(read_back, read_back + size, source.ticket), size) << "torn";
  }
}

}  // namespace
}  // namespace tensorbus::fabric
