// Memory that is taken back: gates, dropped regions, words.
#include <gtest/gtest.h>

#include "fabric/conformance.h"

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

}  // namespace
}  // namespace tensorbus::fabric
