// Versions that are published and pulled, by agents in a simulated cluster.
#include <gtest/gtest.h>

#include "bus/simulation/shelf_fixture.h"

namespace tensorbus::bus::simulation {
namespace {

using std::chrono::seconds;

TEST_F(ShelfTest, AVersionIsPublishedWithoutReadersAndPulledByThoseWhoComeLater) {
  open(trainer, 2);
  publish_all(100);
  publish_all(200);
  publish_all(300);
  open(engine, 0);
  for (const Rank rank : engine.ranks) expect_pulled(rank, 3, 300);
  expect_pulled(10, 3, 300);
  publish_all(400);
  fleet.cluster.run_until([] { return false; }, 500);
  for (const Rank rank : engine.ranks) expect_pulled(rank, 4, 400);
}

TEST_F(ShelfTest, APullWaitsForWhatIsNewerAndSaysWhatIsGone) {
  open(trainer, 2);
  for (const std::int64_t tag : {100, 200, 300}) publish_all(tag);
  open(engine, 0);
  EXPECT_EQ(pull(10, {"b", {}, 2}).version, 2);
  const Outcome gone = pull(10, {"b", {}, 1});
  EXPECT_EQ(gone.absence, Absence::gone);
  EXPECT_NE(gone.status.message.find("version 1"), std::string::npos) << gone.status.message;
  const CommandId waits = fleet.node(10).submit(Pull{"b", {}, {}, 3}, nullptr, within(seconds(1)));
  const CommandId later = fleet.node(11).submit(Pull{"b", {}, 5}, nullptr, within(seconds(1)));
  publish_all(400);
  EXPECT_EQ(fleet.wait(10, waits).version, 4);
  publish_all(500);
  EXPECT_EQ(fleet.wait(11, later).version, 5);
  const Outcome late = pull(10, {"b", {}, {}, 9});
  EXPECT_EQ(late.status.code, Code::timeout);
  EXPECT_NE(late.status.message.find("a version above 9"), std::string::npos);
}

TEST_F(ShelfTest, ARankThatRunsAheadWaitsForTheOtherAndNamesIt) {
  open(trainer, 2);
  publish(0, 100);
  publish(0, 200);
  const Outcome ahead = take_slot(0);
  EXPECT_EQ(ahead.status.code, Code::timeout);
  EXPECT_EQ(ahead.version, 3);
  EXPECT_NE(ahead.status.message.find("rank 1 has not published version 2"), std::string::npos)
      << ahead.status.message;
  publish(1, 100);
  EXPECT_EQ(take_slot(0).status.code, Code::timeout);
  publish(1, 200);
  EXPECT_EQ(take_slot(0).version, 5) << "numbers are used up";
}

TEST_F(ShelfTest, WhatOneRankGaveUpAndAnotherDidNotIsInNobodysWay) {
  open(trainer, 2);
  publish_all(100);
  fleet.wait_ok({{0, fleet.node(0).submit(Shelve{"b", {}, take_slot(0).version, false})}});
  publish(1, 200);
  publish(0, 300);
  EXPECT_EQ(publish(1, 300), 3) << "2 is only here, and never will be there";
  open(engine, 0);
  expect_pulled(10, 3, 300);
}

// proves: L1.3
TEST_F(ShelfTest, WhatOnlyTheSourcesOfAReaderHadDoesNotKeepItFromWhatAllHave) {
  trainer = side("trainer", {0, 1}, Replicate{});
  open(trainer, 2);
  publish_all(100);
  open(engine, 0);
  publish(0, 200);
  fleet.cluster.run_until([] { return false; }, 500);
  const Rank source = pull(10).version == 2 ? 0 : 1;
  const Rank other = 1 - source;
  publish(1, 200);
  fleet.wait_ok(
      {{other, fleet.node(other).submit(Shelve{"b", {}, take_slot(other).version, false})}});
  EXPECT_EQ(publish(source, 300), 3);
  fleet.cluster.run_until([] { return false; }, 500);
  expect_pulled(10, 3, 300);
  EXPECT_EQ(publish(other, 400), 4) << "3 is never everywhere";
  const Outcome taken = take_slot(source);
  EXPECT_TRUE(taken.status.ok()) << taken.status.message;
  expect_pulled(10, 2, 200);
}

// proves: O1.1
TEST_F(ShelfTest, AReaderKeepsItsSlotForAWhileAndThenBeginsAgain) {
  open(trainer, 2);
  publish_all(100);
  publish_all(200);
  open(engine, 0);
  const CommandId slow = fleet.node(10).submit(Pull{"b", {}, 2}, nullptr, within(seconds(9)));
  fleet.cluster.run_until([&] { return fleet.node(10).last_steps().contains(Step::reading); });
  fleet.node(10).stop();
  EXPECT_EQ(pull(11).version, 2);
  publish_all(300);
  const Outcome held = take_slot(0);
  EXPECT_EQ(held.status.code, Code::timeout);
  EXPECT_NE(held.status.message.find("reader rank 10"), std::string::npos) << held.status.message;
  EXPECT_EQ(fleet.node(0).recorder().slots_withdrawn.value(), 0U);
  const Outcome taken = take_slot(0, true);
  EXPECT_TRUE(taken.status.ok()) << taken.status.message;
  EXPECT_EQ(fleet.node(0).recorder().slots_withdrawn.value(), 1U);
  fleet.node(10).resume();
  EXPECT_EQ(fleet.wait(10, slow).absence, Absence::gone);
  EXPECT_EQ(fleet.node(10).recorder().pull_retries.value(), 0U) << "it wants that version";
}

// proves: O1.1
TEST_F(ShelfTest, APullThatBeginsAgainIsCounted) {
  open(trainer, 2);
  publish_all(100);
  publish_all(200);
  open(engine, 0);
  const CommandId slow = fleet.node(10).submit(Pull{"b", {}}, nullptr, within(seconds(9)));
  fleet.cluster.run_until([&] { return fleet.node(10).last_steps().contains(Step::reading); });
  fleet.node(10).stop();
  publish_all(300);
  const Outcome taken = take_slot(0, true);
  ASSERT_TRUE(taken.status.ok()) << taken.status.message;
  fleet.node(10).resume();
  const Outcome outcome = fleet.wait(10, slow);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message;
  EXPECT_EQ(outcome.version, 3);
  EXPECT_EQ(fleet.node(10).recorder().pull_retries.value(), 1U);
}

TEST_F(ShelfTest, WhatAWorkerDidNotFillIsNoVersion) {
  open(trainer, 2);
  publish_all(100);
  open(engine, 0);
  write(0, take_slot(0).slot, 666);
  EXPECT_EQ(take_slot(0).version, 3);
  expect_pulled(10, 1, 100);
}

TEST_F(ShelfTest, AShelfOutlivesItsWorkerUntilAllHavePublishedAgain) {
  open(trainer, 2);
  publish_all(100);
  publish(0, 200);
  open(engine, 0);
  fleet.node(1).replace_worker();
  fleet.cluster.run_until([] { return false; }, 2'000);
  const Outcome stale = take_slot(0);
  EXPECT_TRUE(stale.stale) << stale.status.message;
  expect_pulled(10, 1, 100);
  open(trainer, 2);
  expect_pulled(11, 1, 100);
  EXPECT_EQ(publish(0, 300), 3) << "one above the largest that was ever begun";
  expect_pulled(10, 1, 100);
  EXPECT_EQ(publish(1, 300), 3);
  fleet.cluster.run_until([] { return false; }, 2'000);
  expect_pulled(10, 3, 300);
}

TEST_F(ShelfTest, AnOlderShelfThatIsServedLateDoesNotHideTheNewerOne) {
  open(trainer, 2);
  publish(0, 100);
  fleet.node(0).stop();
  publish(1, 100);  // which rank 0 hears of, and cannot answer
  fleet.node(1).disconnect(0);
  fleet.node(0).resume();
  for (const Rank rank : trainer.ranks) fleet.node(rank).replace_worker();
  open(trainer, 2);
  publish(0, 200);
  fleet.node(0).stop();
  publish(1, 200);
  // The older shelf follows rank 0 again, after the newer one has told it of its version.
  fleet.cluster.clock().advance(std::chrono::milliseconds(250));
  fleet.cluster.run_until([] { return false; }, 500);
  fleet.node(1).stop();
  fleet.node(0).resume();
  fleet.cluster.run_until([] { return false; }, 500);
  fleet.node(1).resume();  // and hears of both at once
  open(engine, 0);
  for (const Rank rank : engine.ranks) expect_pulled(rank, 2, 200);
}

TEST_F(ShelfTest, WhatIsPublishedBeforeTheOthersHaveRegisteredAgainWaitsForThem) {
  open(trainer, 2);
  publish_all(100);
  fleet.node(0).kill();
  fleet.node(0).restart();
  fleet.wait_ok({{0, fleet.node(0).submit(pair_of(trainer, true))}});
  const CommandId registering = enlist(trainer, 0, 2);
  const CommandId early =
      fleet.node(0).submit(Publish{"b", {}, {}, 10, false}, nullptr, within(seconds(2)));
  fleet.cluster.run_until([] { return false; }, 500);
  EXPECT_EQ(fleet.node(0).outcome(early), nullptr);
  const CommandId too_short =
      fleet.node(0).submit(Publish{"b", {}, {}, 10, false}, nullptr, within(seconds(2)));
  EXPECT_EQ(fleet.wait(0, too_short).status.code, Code::invalid_argument) << "one at a time";
  const CommandId again = enlist(trainer, 1, 2);
  fleet.wait_ok({{0, registering}, {1, again}});
  const Outcome taken = fleet.wait(0, early);
  ASSERT_TRUE(taken.status.ok()) << taken.status.message;
  EXPECT_EQ(taken.version, 2);
  write(0, taken.slot, 200);
  shelve(0, taken.version);
  EXPECT_EQ(publish(1, 200), 2);
}

TEST_F(ShelfTest, WhatIsPublishedBeforeTheOthersHaveRegisteredAgainEndsAtItsDeadline) {
  open(trainer, 2);
  publish_all(100);
  fleet.node(0).kill();
  fleet.node(0).restart();
  fleet.wait_ok({{0, fleet.node(0).submit(pair_of(trainer, true))}});
  enlist(trainer, 0, 2);
  const Outcome late = take_slot(0);
  EXPECT_EQ(late.status.code, Code::timeout);
  EXPECT_NE(late.status.message.find("rank 1"), std::string::npos) << late.status.message;
}

TEST_F(ShelfTest, ARegistrationThatIsMadeAgainAfterItsGenerationHasEndedIsStale) {
  open(trainer, 2);
  publish_all(100);
  const std::uint64_t old = fleet.registrations.at({0, "trainer"});
  fleet.node(0).kill();
  fleet.cluster.run_until([] { return false; }, 2'000);
  EXPECT_TRUE(take_slot(1).stale);
  const CommandId anew = enlist(trainer, 1, 2);
  fleet.cluster.run_until([] { return false; }, 500);
  fleet.node(0).restart(false);
  fleet.wait_ok({{0, fleet.node(0).submit(pair_of(trainer, true))}});
  RegisterBatch again = registration(trainer, 0, 2);
  again.registration = old;
  fleet.node(0).submit(again, fleet.loans.at({0, "trainer"}));
  const Outcome told = take_slot(0, false, seconds(1));
  EXPECT_TRUE(told.stale) << told.status.message;
  EXPECT_NE(told.status.message.find("has to register it again"), std::string::npos);
  fleet.wait_ok({{0, enlist(trainer, 0, 2)}, {1, anew}});
  EXPECT_EQ(publish(0, 200), 2);
}

TEST_F(ShelfTest, AShelfStaysNoLongerThanItsAgentWasTold) {
  fleet.cluster.retain = seconds(60);
  for (const Rank rank : trainer.ranks) {
    fleet.node(rank).kill();
    fleet.node(rank).restart();
  }
  open(trainer, 2);
  publish_all(100);
  open(engine, 0);
  expect_pulled(10, 1, 100);
  for (const Rank rank : trainer.ranks) fleet.node(rank).replace_worker();
  fleet.cluster.run_until([] { return false; }, 2'000);
  expect_pulled(10, 1, 100);
  fleet.cluster.clock().advance(seconds(60));
  fleet.cluster.run_until([] { return false; }, 2'000);
  const Outcome late = pull(10);
  EXPECT_EQ(late.status.code, Code::timeout) << late.status.message;
  for (const auto& [key, value] : fleet.cluster.store().values) {
    EXPECT_FALSE(std::holds_alternative<ShelfKey>(parse_key(key).value())) << key;
  }
}

TEST_F(ShelfTest, APublisherThatClosesEndsTheStream) {
  open(trainer, 2);
  publish_all(100);
  open(engine, 0);
  const CommandId next = fleet.node(10).submit(Pull{"b", {}, {}, 1}, nullptr, within(seconds(5)));
  const CommandId waits = fleet.node(11).submit(Pull{"b", {}, {}, 2}, nullptr, within(seconds(5)));
  publish(0, 200);
  fleet.wait_ok({{0, fleet.close(0, trainer)}});
  publish(1, 200);
  fleet.wait_ok({{1, fleet.close(1, trainer)}});
  EXPECT_EQ(fleet.wait(10, next).version, 2) << "who closes first ends nothing that others do";
  const Outcome ended = fleet.wait(11, waits);
  EXPECT_EQ(ended.absence, Absence::ended);
  EXPECT_EQ(ended.status.message, "batch \"b\": side \"trainer\" has ended after version 2");
  expect_pulled(11, 2, 200);
}

TEST_F(ShelfTest, WhoComesBackSoonEndsNothing) {
  open(trainer, 2);
  publish_all(100);
  open(engine, 0);
  const CommandId waits = fleet.node(10).submit(Pull{"b", {}, {}, 1}, nullptr, within(seconds(9)));
  for (const Rank rank : trainer.ranks) {
    const auto registration = fleet.registrations.at({rank, "trainer"});
    fleet.wait_ok({{rank, fleet.node(rank).submit(CloseBatch{"b", registration, true})}});
  }
  open(trainer, 2);
  publish_all(200);
  EXPECT_EQ(fleet.wait(10, waits).version, 2);
}

TEST_F(ShelfTest, MemoryOfAShelfAndItsNumbersAreChecked) {
  open(trainer, 2);
  RegisterBatch small = registration(trainer, 0, 1);
  const auto code = [&](Rank rank, Command command, std::shared_ptr<Loan> loan = nullptr) {
    return fleet.wait(rank, fleet.node(rank).submit(std::move(command), std::move(loan)))
        .status.code;
  };
  EXPECT_EQ(code(0, small, fleet.loans.at({0, "trainer"})), Code::invalid_argument);
  EXPECT_EQ(code(0, Shelve{"b", {}, 1, true}), Code::unreachable);
  EXPECT_EQ(code(0, Pull{"b", {}}), Code::invalid_argument);
  EXPECT_EQ(code(0, Transfer{"b", Direction::send, {}, 1}), Code::invalid_argument);
  publish_all(100);
  EXPECT_EQ(code(0, Publish{"b", {}, 1, 0, false}), Code::invalid_argument);
  EXPECT_EQ(take_slot(0).version, 2) << "a number that was refused is not used up";
}

}  // namespace
}  // namespace tensorbus::bus::simulation
