// Versions of which readers get the changed values only, by agents in a simulated cluster.
#include <gtest/gtest.h>

#include "bus/simulation/shelf_fixture.h"

namespace tensorbus::bus::simulation {
namespace {

using delta::Why;
using std::chrono::milliseconds;
using std::chrono::seconds;

class DeltaTest : public ShelfTest {
 protected:
  DeltaTest() {
    deltas = true;
    mode = delta::Mode::always;
  }

  // Element 7 k is as old as version k, all others stay as they were in the first.
  void publish_next() {
    ++versions;
    publish_each([&](std::int64_t i) { return content(versions, i); });
  }
  static std::int64_t content(std::int64_t version, std::int64_t i) {
    return i % 7 == 0 && i / 7 < version ? 1000 * (i / 7 + 1) + i : i;
  }
  Why pull_newest(Rank rank, Pull wish = {"b", {}}) {
    const Outcome outcome = pull(rank, std::move(wish));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message;
    EXPECT_EQ(outcome.version, versions);
    expect_content(rank, outcome.version);
    EXPECT_TRUE(outcome.update.has_value());
    last = outcome.update.value_or(Update{});
    return last.why;
  }
  void expect_content(Rank rank, std::int64_t version) {
    fleet.for_each(engine, rank, shape, [&](std::int64_t number, std::int64_t i) {
      EXPECT_EQ(number, content(version, i)) << "element " << i << " of version " << version;
    });
  }

  // Rank 10, which has heard of all versions, pulls; rank 0 stands still.
  CommandId pull_from_one_that_stands_still() {
    fleet.cluster.run_until([] { return false; }, 500);
    fleet.node(0).stop();
    const CommandId id = fleet.node(10).submit(Pull{"b", {}}, nullptr, within(seconds(5)));
    fleet.cluster.run_until([] { return false; }, 500);
    return id;
  }

  std::int64_t versions = 0;
  Update last;
};

// proves: E1.3
TEST_F(DeltaTest, WhoHoldsAVersionGetsTheChangedValues) {
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  for (const Rank rank : engine.ranks) EXPECT_EQ(pull_newest(rank), Why::no_base);
  for (int i = 0; i < 3; ++i) {
    publish_next();
    for (const Rank rank : engine.ranks) EXPECT_EQ(pull_newest(rank), Why::patch);
  }
  EXPECT_EQ(last.elements, 12);
  EXPECT_LE(last.values, 1) << "one element of all changes from version to version";
  EXPECT_EQ(pull_newest(10), Why::patch) << "the same once more";
  EXPECT_EQ(last.values, 0);
}

// proves: E1.3
TEST_F(DeltaTest, ALaggardGetsOnePatchForAllThatItMissed) {
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  for (const Rank rank : engine.ranks) pull_newest(rank);
  for (int i = 0; i < 3; ++i) {
    publish_next();
    EXPECT_EQ(pull_newest(10), Why::patch);
  }
  EXPECT_EQ(pull_newest(11), Why::patch);
}

// proves: E1.1
TEST_F(DeltaTest, NothingIsComparedOrPatchedWithoutAPromise) {
  open(trainer, 2);
  publish_next();
  deltas = false;
  open(engine, 0);
  EXPECT_FALSE(pull(10).update.has_value());
  EXPECT_FALSE(take_slot(0).previous.has_value()) << "nobody has promised anything";
}

// proves: E1.1
TEST_F(DeltaTest, WhoHasWrittenToItsTensorsSaysSoAndReadsAll) {
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  pull_newest(10);
  fleet.loans.at({10, "engine"})->numbers(0)[0] = -1;
  publish_next();
  Pull wish{"b", {}};
  wish.overwritten = true;
  EXPECT_EQ(pull_newest(10, wish), Why::no_base);
  publish_next();
  EXPECT_EQ(pull_newest(10), Why::patch);
}

// proves: E1.3
TEST_F(DeltaTest, AnOlderVersionIsReadWhole) {
  open(trainer, 3);
  publish_next();
  publish_next();
  open(engine, 0);
  pull_newest(10);
  const Outcome older = pull(10, {"b", {}, 1});
  EXPECT_EQ(older.update->why, Why::no_base);
  expect_content(10, 1);
  publish_next();
  pull_newest(10);
}

// proves: E1.9
TEST_F(DeltaTest, WithoutMemoryForWhatHasChangedAllIsRead) {
  delta_memory = 0;
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  pull_newest(10);
  publish_next();
  EXPECT_EQ(pull_newest(10), Why::no_base);
}

// proves: E1.3
TEST_F(DeltaTest, AnotherGenerationIsReadWhole) {
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  for (const Rank rank : engine.ranks) pull_newest(rank);
  for (const Rank rank : trainer.ranks) {
    fleet.wait_ok({{rank, fleet.close(rank, trainer)}});
  }
  std::vector<std::pair<Rank, CommandId>> ids;
  for (const Rank rank : trainer.ranks) ids.emplace_back(rank, enlist(trainer, rank, 2));
  fleet.wait_ok(ids);
  publish_next();
  fleet.cluster.run_until([] { return false; }, 2'000);  // until readers have heard of that
  EXPECT_EQ(pull_newest(10), Why::no_base);
  publish_next();
  EXPECT_EQ(pull_newest(10), Why::patch);
}

// proves: E1.2
TEST_F(DeltaTest, AVersionThatWasNotComparedEndsAllBases) {
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  for (const Rank rank : engine.ranks) pull_newest(rank);
  ++versions;
  for (const Rank rank : trainer.ranks) {
    const Outcome taken = take_slot(rank);
    EXPECT_TRUE(taken.previous.has_value());
    write_each(rank, taken.slot, [&](std::int64_t i) { return content(versions, i); });
    shelve(rank, taken.version, false);
  }
  EXPECT_EQ(pull_newest(10), Why::no_base);
  publish_next();
  EXPECT_EQ(pull_newest(10), Why::patch);
  EXPECT_EQ(pull_newest(11), Why::no_base);
}

// proves: E1.4
TEST_F(DeltaTest, ASourceThatStandsStillIsReadWhole) {
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  for (const Rank rank : engine.ranks) pull_newest(rank);
  publish_next();
  const CommandId id = pull_from_one_that_stands_still();
  EXPECT_EQ(fleet.node(10).outcome(id), nullptr);
  fleet.cluster.clock().advance(seconds(2));
  const Outcome outcome = fleet.wait(10, id);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message;
  EXPECT_EQ(outcome.update->why, Why::no_answer);
  expect_content(10, versions);
  fleet.node(0).resume();
  publish_next();
  EXPECT_EQ(pull_newest(10), Why::patch);
}

// proves: E1.4
TEST_F(DeltaTest, APullThatEndsBeforeItAppliesHasChangedNothing) {
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  for (const Rank rank : engine.ranks) pull_newest(rank);
  publish_next();
  const CommandId id = pull_from_one_that_stands_still();
  fleet.node(10).cancel(id, {Code::cancelled, "no more"});
  const Outcome outcome = fleet.wait(10, id);
  EXPECT_EQ(outcome.status.message, "no more; the tensors are as they were");
  expect_content(10, 1);
  fleet.node(0).resume();
  fleet.cluster.run_until([] { return false; }, 2'000);  // until the late answer has come
  EXPECT_EQ(pull_newest(10), Why::patch);
}

// proves: E1.7
TEST_F(DeltaTest, WhatWasFetchedIsAppliedLater) {
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  pull_newest(10);
  publish_next();
  Pull wish{"b", {}};
  wish.part = PullPart::fetch;
  EXPECT_EQ(pull(10, wish).update->why, Why::patch);
  expect_content(10, 1);
  wish.part = PullPart::apply;
  wish.version = 2;
  EXPECT_EQ(pull_newest(10, wish), Why::patch);
  publish_next();
  EXPECT_EQ(pull_newest(10), Why::patch);
}

// proves: E1.7
TEST_F(DeltaTest, AFetchCanReadAllIntoOtherMemory) {
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  Pull wish{"b", {}};
  wish.part = PullPart::fetch;
  wish.scratch = true;
  const Outcome fetched = pull(10, wish);
  EXPECT_TRUE(fetched.status.ok()) << fetched.status.message;
  EXPECT_EQ(fetched.update->why, Why::no_base);
  for (const std::int64_t number : fleet.loans.at({10, "engine"})->numbers(0)) {
    EXPECT_EQ(number, 0);
  }
  for (const Rank rank : trainer.ranks) fleet.node(rank).kill();
  fleet.cluster.run_until([] { return false; }, 500);
  wish.part = PullPart::apply;
  wish.version = 1;
  EXPECT_EQ(pull_newest(10, wish), Why::no_base);
}

// proves: E1.8
TEST_F(DeltaTest, WhatWasPatchedIsComparedWithWhatItsSourcesHave) {
  open(trainer, 2);
  publish_next();
  open(engine, 0);
  pull_newest(10);
  for (const Verify verify : {Verify::full, Verify::sample, Verify::off}) {
    publish_next();
    Pull wish{"b", {}};
    wish.verify = verify;
    EXPECT_EQ(pull_newest(10, wish), Why::patch);
    EXPECT_EQ(last.verified, verify != Verify::off);
  }
}

}  // namespace
}  // namespace tensorbus::bus::simulation
