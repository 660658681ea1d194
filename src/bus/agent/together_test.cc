// Versions that all ranks of a side pull together, by agents in a simulated cluster.
#include <gtest/gtest.h>

#include <map>

#include "bus/simulation/shelf_fixture.h"

namespace tensorbus::bus::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class TogetherTest : public ShelfTest {
 protected:
  TogetherTest() {
    fleet.add(engines);
    open(trainer, 2);
    publish_all(100);
    publish_all(200);
    open(engines, 0);
  }

  void begin(Rank rank, std::optional<std::int64_t> version = {},
             std::optional<std::int64_t> newer_than = {}, Duration time = seconds(20)) {
    pulls[rank] =
        fleet.node(rank).submit(Pull{"b", {}, version, newer_than, true}, nullptr, within(time));
  }
  void begin_all() {
    for (const Rank rank : engines.ranks) begin(rank);
  }
  Outcome end(Rank rank) { return fleet.wait(rank, pulls.at(rank)); }
  void expect_all(std::int64_t version, std::int64_t tag) {
    for (const Rank rank : engines.ranks) {
      const Outcome outcome = end(rank);
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.message;
      EXPECT_EQ(outcome.version, version);
      fleet.expect(engines, rank, shape, tag);
    }
  }
  void run_until(Rank rank, Step step) {
    EXPECT_TRUE(fleet.cluster.run_until([&] {
      return fleet.node(rank).last_steps().contains(step);
    })) << "rank "
        << rank << " does not reach " << to_string(step);
  }
  // All have proposed and one stands still while it reads; the others have read.
  void stop_while_reading(Rank slow) {
    begin_all();
    run_until(slow, Step::reading);
    fleet.node(slow).stop();
    fleet.cluster.run_until([] { return false; }, 2'000);
    for (const Rank rank : engines.ranks) {
      EXPECT_EQ(fleet.node(rank).outcome(pulls.at(rank)), nullptr) << "nobody returns before all";
    }
  }

  TestSide engines = side("engines", {20, 21, 22}, Shard{1});
  std::map<Rank, CommandId> pulls;
};

// proves: L1.4
TEST_F(TogetherTest, AllRanksGetTheVersionThatTheLastOfThemFinds) {
  begin(20);
  begin(22);
  fleet.cluster.run_until([] { return false; }, 1'000);
  publish_all(300);
  fleet.cluster.run_until([] { return false; }, 1'000);
  begin(21);
  expect_all(3, 300);
  begin_all();
  expect_all(3, 300);
}

// proves: L1.4
TEST_F(TogetherTest, WhatOneRankWaitsForAllGet) {
  begin(20, {}, 2);
  begin(21);
  begin(22);
  fleet.cluster.run_until([] { return false; }, 1'000);
  EXPECT_EQ(fleet.node(21).outcome(pulls.at(21)), nullptr);
  publish_all(300);
  expect_all(3, 300);
}

// proves: L1.4
TEST_F(TogetherTest, WhoDoesNotPullIsNamedByTheOthers) {
  begin(20, {}, {}, milliseconds(300));
  begin(22, {}, {}, seconds(2));
  // Whoever gives up does not pull any more, either.
  for (const auto& [rank, absent] : {std::pair(20, "rank 21"), std::pair(22, "rank 20, 21")}) {
    const Outcome late = end(rank);
    EXPECT_EQ(late.status.code, Code::timeout);
    EXPECT_NE(late.status.message.find(std::string(absent) + " of side \"engines\" has not pulled"),
              std::string::npos)
        << late.status.message;
  }
  begin_all();
  expect_all(2, 200);
}

// proves: L1.4
TEST_F(TogetherTest, WhatOneRankWillNeverGetEndsThePullOfAll) {
  publish_all(300);
  begin(20);
  begin(22);
  fleet.cluster.run_until([] { return false; }, 1'000);
  begin(21, 1);
  EXPECT_EQ(end(21).absence, Absence::gone);
  for (const Rank rank : {20, 22}) {
    const Outcome ended = end(rank);
    EXPECT_EQ(ended.absence, Absence::gone);
    EXPECT_NE(ended.status.message.find("rank 21 of side \"engines\""), std::string::npos)
        << ended.status.message;
  }
  begin_all();
  expect_all(3, 300);
}

// proves: L1.4
TEST_F(TogetherTest, WishesThatExcludeEachOtherAreRefusedAtAllRanks) {
  begin(20, 1);
  begin(21, 2);
  begin(22);
  for (const Rank rank : engines.ranks) {
    const Outcome refused = end(rank);
    EXPECT_EQ(refused.status.code, Code::invalid_argument);
    EXPECT_NE(refused.status.message.find("rank 20 for version 1, rank 21 for version 2"),
              std::string::npos)
        << refused.status.message;
  }
}

// proves: L1.4, L1.5
TEST_F(TogetherTest, WhatIsTakenFromOneRankIsReadByNone) {
  stop_while_reading(22);
  publish_all(300);
  for (const Rank rank : trainer.ranks) {
    const Outcome taken = take_slot(rank, true);
    ASSERT_TRUE(taken.status.ok()) << taken.status.message;
    write(rank, taken.slot, 400);
    shelve(rank, taken.version);
  }
  fleet.node(22).resume();
  expect_all(4, 400);
}

// proves: L1.4
TEST_F(TogetherTest, WhoHasReadAndLosesTheLowestRankFailsAlone) {
  stop_while_reading(22);
  fleet.node(20).kill();
  const Outcome lost = end(21);
  EXPECT_EQ(lost.status.code, Code::peer_lost);
  EXPECT_EQ(lost.lost, std::vector<Rank>{20});
  EXPECT_NE(lost.status.message.find("rank 20 of side \"engines\""), std::string::npos)
      << lost.status.message;
  fleet.node(22).resume();
  fleet.node(20).restart();
  fleet.wait_ok({{20, fleet.node(20).submit(pair_of(engines, false))}});
  fleet.wait_ok({{20, enlist(engines, 20, 0)}});
  begin(20);
  begin(21);
  expect_all(2, 200);
}

// proves: L1.4
TEST_F(TogetherTest, WhoIsGoneMakesTheOthersWaitUntilItIsBack) {
  stop_while_reading(22);
  fleet.node(22).kill();
  fleet.cluster.run_until([] { return false; }, 2'000);
  EXPECT_EQ(fleet.node(21).outcome(pulls.at(21)), nullptr);
  publish_all(300);
  fleet.node(22).restart();
  fleet.wait_ok({{22, fleet.node(22).submit(pair_of(engines, false))}});
  fleet.wait_ok({{22, enlist(engines, 22, 0)}});
  begin(22);
  expect_all(3, 300);
}

// proves: L1.4
TEST_F(TogetherTest, WhoGivesUpAfterItHasReadMakesTheOthersReadAgain) {
  stop_while_reading(22);
  fleet.node(21).cancel(pulls.at(21), {Code::cancelled, "its user has lost interest"});
  EXPECT_EQ(end(21).status.code, Code::cancelled);
  publish_all(300);
  fleet.node(22).resume();
  fleet.cluster.run_until([] { return false; }, 2'000);
  EXPECT_EQ(fleet.node(20).outcome(pulls.at(20)), nullptr);
  begin(21);
  expect_all(3, 300);
}

// proves: L1.4
TEST_F(TogetherTest, ANewGenerationOfThePublishersIsPulledByAllRanks) {
  begin(20, {}, 2);
  begin(22, {}, 2);
  for (const Rank rank : trainer.ranks) fleet.node(rank).replace_worker();
  fleet.cluster.run_until([] { return false; }, 2'000);
  open(trainer, 2);
  begin(21);
  publish_all(500);
  expect_all(3, 500);
}

// proves: L1.4
TEST_F(TogetherTest, WhoPullsForItselfWaitsForNobody) {
  EXPECT_EQ(pull(21).version, 2);
  begin(20, {}, {}, milliseconds(300));
  EXPECT_EQ(pull(21).version, 2);
  EXPECT_EQ(end(20).status.code, Code::timeout);
}

}  // namespace
}  // namespace tensorbus::bus::simulation
