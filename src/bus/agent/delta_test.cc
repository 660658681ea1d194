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

}  // namespace
}  // namespace tensorbus::bus::simulation
