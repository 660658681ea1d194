#include "bus/agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bus/simulation/fixture.h"

namespace tensorbus::bus::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

const Shape whole{6, 4};

class AgentTest : public testing::TestWithParam<std::uint64_t> {
 protected:
  AgentTest() : fleet_(GetParam()) {}

  Deadline in(Duration time) { return Deadline(fleet_.cluster.clock().now() + time); }
  void pass(Duration time) {
    const TimePoint until = fleet_.cluster.clock().now() + time;
    fleet_.cluster.run_until([&] { return fleet_.cluster.clock().now() >= until; }, 10'000'000);
  }

  Fleet fleet_;
  TestSide train_ = side("train", {0, 1}, Shard{0});
  TestSide infer_ = side("infer", {2, 3}, Shard{1});
};

INSTANTIATE_TEST_SUITE_P(Seeds, AgentTest, testing::Range<std::uint64_t>(1, 6));

// proves: B3.1, B3.5, B3.8
TEST_P(AgentTest, RoundsCarryTheTensorsOver) {
  fleet_.set_up(train_, infer_, whole);
  for (std::int64_t round = 1; round <= 3; ++round) {
    fleet_.fill(train_, whole, round * 1000);
    std::vector<std::pair<Rank, CommandId>> ids;
    for (const Rank rank : train_.ranks) ids.emplace_back(rank, fleet_.send(rank));
    for (const Rank rank : infer_.ranks) ids.emplace_back(rank, fleet_.recv(rank));
    fleet_.wait_ok(ids);
    for (const auto& [rank, id] : ids) EXPECT_EQ(fleet_.wait(rank, id).round, round);
    for (const Rank rank : infer_.ranks) fleet_.expect(infer_, rank, whole, round * 1000);
    EXPECT_THAT(fleet_.wait(0, ids[0].second).readers,
                ElementsAre(Pair(2, ReaderOutcome::read), Pair(3, ReaderOutcome::read)));
  }
}

// proves: B3.10
TEST_P(AgentTest, BothDirectionsWorkOneAfterTheOther) {
  fleet_.set_up(train_, infer_, whole);
  for (std::int64_t round = 1; round <= 2; ++round) {
    for (const bool forth : {true, false}) {
      const TestSide& from = forth ? train_ : infer_;
      const TestSide& to = forth ? infer_ : train_;
      const std::int64_t tag = round * 100 + (forth ? 0 : 50);
      fleet_.fill(from, whole, tag);
      std::vector<std::pair<Rank, CommandId>> ids;
      for (const Rank rank : from.ranks) ids.emplace_back(rank, fleet_.send(rank));
      for (const Rank rank : to.ranks) ids.emplace_back(rank, fleet_.recv(rank));
      fleet_.wait_ok(ids);
      for (const Rank rank : to.ranks) fleet_.expect(to, rank, whole, tag);
    }
  }
}

// proves: B3.10
TEST_P(AgentTest, BothSendingAtOnceFailsAtOnceAndSaysSo) {
  fleet_.set_up(train_, infer_, whole);
  std::vector<std::pair<Rank, CommandId>> ids;
  for (const Rank rank : {0, 1, 2, 3}) ids.emplace_back(rank, fleet_.send(rank));
  for (const auto& [rank, id] : ids) {
    const Outcome outcome = fleet_.wait(rank, id);
    EXPECT_EQ(outcome.status.code, Code::failed);
    EXPECT_THAT(outcome.status.message, HasSubstr("sending"));
  }
  // All of them can go on.
  fleet_.fill(train_, whole, 7);
  ids.clear();
  for (const Rank rank : train_.ranks) ids.emplace_back(rank, fleet_.send(rank));
  for (const Rank rank : infer_.ranks) ids.emplace_back(rank, fleet_.recv(rank));
  fleet_.wait_ok(ids);
  fleet_.expect(infer_, 3, whole, 7);
}

TEST_P(AgentTest, ARegistrationThatFailedDoesNotFailTheNextOne) {
  const TestSide from = side("train", {0}, Replicate{});
  const TestSide to = side("infer", {2}, Replicate{});
  fleet_.set_up(from, to, whole);
  for (int time = 0; time < 20; ++time) {
    fleet_.wait_ok({{0, fleet_.close(0, from)}, {2, fleet_.close(2, to)}});
    pass(std::chrono::seconds(1));
    const CommandId fits_not = fleet_.enlist(0, from, whole);
    const CommandId other = fleet_.enlist(2, to, whole, Deadline::never(), "b", Dtype::complex64);
    EXPECT_EQ(fleet_.wait(0, fits_not).status.code, Code::invalid_argument);
    // At once: the store has told nobody of the failure yet.
    const CommandId again = fleet_.enlist(0, from, whole);
    EXPECT_EQ(fleet_.wait(2, other).status.code, Code::invalid_argument);
    fleet_.wait_ok({{2, fleet_.enlist(2, to, whole)}, {0, again}});
  }
}

// proves: B3.10, B5.1
TEST_P(AgentTest, RanksWithNothingToMoveCompleteAtOnce) {
  const TestSide from = side("train", {0, 1}, Replicate{});
  const TestSide to = side("infer", {2}, Replicate{});
  fleet_.set_up(from, to, whole);
  fleet_.fill(from, whole, 3);
  fleet_.wait_ok({{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}});
  fleet_.expect(to, 2, whole, 3);
}

// proves: B3.10
TEST_P(AgentTest, SeveralRoundsMayBeQueued) {
  fleet_.set_up(train_, infer_, whole);
  fleet_.fill(train_, whole, 1);
  std::vector<std::pair<Rank, CommandId>> ids;
  for (int round = 0; round < 3; ++round) {
    for (const Rank rank : train_.ranks) ids.emplace_back(rank, fleet_.send(rank));
    for (const Rank rank : infer_.ranks) ids.emplace_back(rank, fleet_.recv(rank));
  }
  fleet_.wait_ok(ids);
  EXPECT_EQ(fleet_.wait(0, ids[8].second).round, 3);
}

// proves: B3.15
TEST_P(AgentTest, ATimeoutSaysWhoIsMissingAndLeavesTheBatchUsable) {
  fleet_.set_up(train_, infer_, whole);
  const CommandId send = fleet_.send(0, in(milliseconds(50)));
  const Outcome late = fleet_.wait(0, send);
  EXPECT_EQ(late.status.code, Code::timeout);
  EXPECT_THAT(late.status.message, HasSubstr("rank 2, 3"));
  // The other sender has to repeat the step, too.
  const Outcome other = fleet_.wait(1, fleet_.send(1, in(milliseconds(50))));
  EXPECT_EQ(other.status.code, Code::failed);
  EXPECT_THAT(other.status.message, HasSubstr("withdrawn"));
  const Outcome recv = fleet_.wait(2, fleet_.recv(2, in(milliseconds(50))));
  EXPECT_EQ(recv.status.code, Code::timeout);
  EXPECT_THAT(recv.status.message, HasSubstr("rank 0, 1"));
  fleet_.fill(train_, whole, 9);
  fleet_.wait_ok(
      {{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}, {3, fleet_.recv(3)}});
  fleet_.expect(infer_, 2, whole, 9);
}

// proves: B3.8, B3.17
TEST_P(AgentTest, ALostReaderEndsItsOwnReadsOnly) {
  fleet_.set_up(train_, infer_, whole);
  fleet_.fill(train_, whole, 5);
  const CommandId first = fleet_.send(0);
  const CommandId second = fleet_.send(1);
  fleet_.wait_ok({{2, fleet_.recv(2)}});
  fleet_.node(3).kill();
  for (const auto& [rank, id] : {std::pair(0, first), std::pair(1, second)}) {
    const Outcome outcome = fleet_.wait(rank, id);
    EXPECT_EQ(outcome.status.code, Code::peer_lost);
    EXPECT_THAT(outcome.readers,
                ElementsAre(Pair(2, ReaderOutcome::read), Pair(3, ReaderOutcome::lost)));
    EXPECT_THAT(outcome.lost, ElementsAre(3));
  }
  fleet_.fill(train_, whole, 6);
  fleet_.wait_ok({{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}});
  fleet_.expect(infer_, 2, whole, 6);
}

// proves: B3.3
TEST_P(AgentTest, ARestartedReaderJoinsAnew) {
  fleet_.set_up(train_, infer_, whole);
  fleet_.fill(train_, whole, 5);
  fleet_.wait_ok(
      {{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}, {3, fleet_.recv(3)}});
  fleet_.node(3).kill();
  fleet_.node(3).restart();
  fleet_.wait_ok({{3, fleet_.init(3, infer_, "train")}});
  fleet_.wait_ok({{3, fleet_.enlist(3, infer_, whole)}});
  fleet_.fill(train_, whole, 8);
  fleet_.wait_ok(
      {{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}, {3, fleet_.recv(3)}});
  fleet_.expect(infer_, 2, whole, 8);
  fleet_.expect(infer_, 3, whole, 8);
}

TEST_P(AgentTest, ARestartedAgentServesItsOldWorker) {
  fleet_.set_up(train_, infer_, whole);
  fleet_.node(3).kill();
  fleet_.node(3).restart(false);
  // The worker passes its memory again; the pair is known from the agent's state.
  fleet_.wait_ok({{3, fleet_.enlist(3, infer_, whole)}});
  fleet_.fill(train_, whole, 8);
  fleet_.wait_ok(
      {{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}, {3, fleet_.recv(3)}});
  fleet_.expect(infer_, 3, whole, 8);
}

// proves: B3.3
TEST_P(AgentTest, AnotherLayoutForALiveSideIsAnErrorForTheNewcomerOnly) {
  fleet_.set_up(train_, infer_, whole);
  TestSide other = infer_;
  other.layout->placements = {Shard{0}};
  EXPECT_EQ(fleet_.wait(3, fleet_.init(3, other, "train")).status.code, Code::invalid_argument);
  fleet_.node(3).kill();
  fleet_.node(3).restart();
  EXPECT_EQ(fleet_.wait(3, fleet_.init(3, other, "train")).status.code, Code::invalid_argument);
  fleet_.fill(train_, whole, 8);
  fleet_.wait_ok({{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}});
  fleet_.wait_ok({{3, fleet_.init(3, infer_, "train")}});
  // A side whose members are all gone may come back with another layout.
  fleet_.node(2).kill();
  fleet_.node(3).kill();
  fleet_.node(2).restart();
  fleet_.node(3).restart();
  fleet_.wait_ok({{2, fleet_.init(2, other, "train")}, {3, fleet_.init(3, other, "train")}});
  fleet_.wait_ok({{2, fleet_.enlist(2, other, whole)}, {3, fleet_.enlist(3, other, whole)}});
  fleet_.fill(train_, whole, 9);
  fleet_.wait_ok(
      {{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}, {3, fleet_.recv(3)}});
  fleet_.expect(other, 3, whole, 9);
}

// proves: B3.14
TEST_P(AgentTest, AWorkerTakesThePlaceOfOneThatDiedWhileItsRecvStillDrains) {
  const TestSide one = side("train", {0}, Replicate{});
  const TestSide other = side("infer", {1}, Replicate{});
  fleet_.set_up(one, other, whole);
  Cluster& cluster = fleet_.cluster;
  bool reads = false;
  cluster.on_step = [&](Rank rank, Step step) { reads |= rank == 1 && step == Step::reading; };
  fleet_.recv(1);
  fleet_.send(0);
  cluster.run_until([&] { return reads; });
  cluster.weather.slow.insert(1);
  fleet_.node(1).replace_worker();
  fleet_.wait_ok({{1, fleet_.init(1, other, "train")}});
  const CommandId registers = fleet_.enlist(1, other, whole);
  cluster.weather.slow.clear();
  fleet_.wait_ok({{1, registers}});
  fleet_.fill(one, whole, 7);
  fleet_.wait_ok({{0, fleet_.send(0)}, {1, fleet_.recv(1)}});
  fleet_.expect(other, 1, whole, 7);
}

// proves: B3.10
TEST_P(AgentTest, AReaderThatStoodStillWhileItConfirmedIsToldThatItsSenderIsGone) {
  const bool word_first = GetParam() % 2 == 0;  // it sees the word before it hears why
  const TestSide one = side("train", {0}, Replicate{});
  const TestSide other = side("infer", {1}, Replicate{});
  fleet_.set_up(one, other, whole);
  fleet_.fill(one, whole, 5);
  Cluster& cluster = fleet_.cluster;
  const auto line = Weather::line(0, 1);
  bool confirms = false;
  cluster.on_step = [&](Rank rank, Step step) {
    if (rank != 1 || step != Step::committing || std::exchange(confirms, true)) return;
    fleet_.node(0).submit(CloseBatch{"b", fleet_.registrations.at({0, "train"})});
    fleet_.node(0).step();
    if (word_first) cluster.weather.cut.insert(line);
    if (!word_first) cluster.weather.slow.insert(1);
    cluster.clock().advance(seconds(3));
  };
  const CommandId recv = fleet_.recv(1);
  fleet_.send(0);
  cluster.run_until([&] { return confirms; });
  if (word_first) {
    for (int i = 0; i < 10; ++i) fleet_.node(1).step();
    cluster.weather.cut.clear();
  }
  const Outcome outcome = fleet_.wait(1, recv);
  EXPECT_EQ(outcome.status.code, Code::peer_lost) << outcome.status.message;
  EXPECT_THAT(outcome.lost, ElementsAre(0));
}

// proves: B3.10
TEST_P(AgentTest, AfterASenderDiedAllSendersRegisterAgainAndRoundsRestart) {
  fleet_.set_up(train_, infer_, whole);
  fleet_.fill(train_, whole, 5);
  fleet_.wait_ok(
      {{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}, {3, fleet_.recv(3)}});
  const CommandId waits = fleet_.recv(2);
  const CommandId sends = fleet_.send(0);
  pass(milliseconds(50));
  fleet_.node(1).kill();
  const Outcome recv = fleet_.wait(2, waits);
  EXPECT_EQ(recv.status.code, Code::peer_lost);
  EXPECT_THAT(recv.lost, ElementsAre(1));
  EXPECT_THAT(recv.status.message, HasSubstr("rank 1"));
  const Outcome send = fleet_.wait(0, sends);
  EXPECT_EQ(send.status.code, Code::peer_lost);
  // The readers of rank 0 are gone already; until the agent of rank 0 hears why, there is nobody to
  // wait for.
  Outcome next;
  for (int tries = 0; tries < 100 && next.status.ok(); ++tries) {
    next = fleet_.wait(0, fleet_.send(0));
    pass(milliseconds(1));
  }
  EXPECT_THAT(next.status.message, HasSubstr("register it again"));
  fleet_.node(1).restart();
  fleet_.wait_ok({{1, fleet_.init(1, train_, "infer")}});
  fleet_.wait_ok({{0, fleet_.enlist(0, train_, whole)}, {1, fleet_.enlist(1, train_, whole)}});
  fleet_.fill(train_, whole, 11);
  const CommandId again = fleet_.send(0);
  fleet_.wait_ok({{0, again}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}, {3, fleet_.recv(3)}});
  EXPECT_EQ(fleet_.wait(0, again).round, 1);
  fleet_.expect(infer_, 3, whole, 11);
}

// proves: B3.10
TEST_P(AgentTest, ASenderThatHasDoneItsPartAndEndsBreaksNobody) {
  const Shape row{1, 4};  // rank 1 has nothing of it, so its sends return at once
  const TestSide to = side("infer", {2}, Replicate{});
  fleet_.set_up(train_, to, row);
  for (int round = 1; round <= 3; ++round) fleet_.wait_ok({{1, fleet_.send(1)}});
  fleet_.wait_ok({{1, fleet_.close(1, train_)}});
  fleet_.node(1).kill();
  for (int round = 1; round <= 3; ++round) {
    fleet_.fill(side("train", {0}, Replicate{}), row, round * 100);
    fleet_.wait_ok({{0, fleet_.send(0)}, {2, fleet_.recv(2)}});
    fleet_.expect(to, 2, row, round * 100);
  }
  const Outcome beyond = fleet_.wait(0, fleet_.send(0));
  EXPECT_EQ(beyond.status.code, Code::failed);
  EXPECT_THAT(beyond.status.message, HasSubstr("rank 1 has ended it after round 3"));
  EXPECT_TRUE(beyond.stale);
  // All of them begin anew.
  fleet_.node(1).restart();
  fleet_.wait_ok({{1, fleet_.init(1, train_, "infer")}});
  fleet_.wait_ok({{0, fleet_.enlist(0, train_, row)}, {1, fleet_.enlist(1, train_, row)}});
  fleet_.wait_ok({{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}});
}

// proves: B3.10
TEST_P(AgentTest, ASenderThatDiesEndsTheRoundsOfAll) {
  const Shape row{1, 4};
  fleet_.set_up(train_, side("infer", {2}, Replicate{}), row);
  for (int round = 1; round <= 3; ++round) fleet_.wait_ok({{1, fleet_.send(1)}});
  const CommandId sends = fleet_.send(0);
  ASSERT_TRUE(fleet_.cluster.run_until(
      [&] { return fleet_.node(0).last_steps().contains(Step::offered); }));
  fleet_.node(1).kill();
  EXPECT_EQ(fleet_.wait(0, sends).status.code, Code::peer_lost);
}

// proves: B3.2
TEST_P(AgentTest, RanksOfASideThatDisagreeAllFail) {
  fleet_.add(train_);
  fleet_.add(infer_);
  TestSide wrong = train_;
  wrong.layout->placements = {Shard{1}};
  std::vector<std::pair<Rank, CommandId>> ids = {{0, fleet_.init(0, train_, "infer")},
                                                 {1, fleet_.init(1, wrong, "infer")},
                                                 {2, fleet_.init(2, infer_, "train")},
                                                 {3, fleet_.init(3, infer_, "train")}};
  for (const auto& [rank, id] : ids) {
    const Outcome outcome = fleet_.wait(rank, id);
    EXPECT_EQ(outcome.status.code, Code::invalid_argument);
    EXPECT_THAT(outcome.status.message, AllOf(HasSubstr("rank 0"), HasSubstr("rank 1")));
  }
}

// The receiver has seen it and left before a sender looks.
TEST_P(AgentTest, SendersThatDisagreeAreToldAlsoWhenTheirReceiverHasFailed) {
  const TestSide from = side("train", {0, 1}, Replicate{});
  const TestSide to = side("infer", {2}, Replicate{});
  fleet_.add(from);
  fleet_.add(to);
  fleet_.wait_ok({{0, fleet_.init(0, from, "infer")},
                  {1, fleet_.init(1, from, "infer")},
                  {2, fleet_.init(2, to, "train")}});
  const auto enlist = [&](Rank rank, const TestSide& local, const Shape& shape, Direction way) {
    return fleet_.enlist(rank, local, shape, in(seconds(20)), "b", Dtype::int64,
                         Versioned{way, 0, false, {}});
  };
  const CommandId one = enlist(0, from, {6, 4}, Direction::send);
  const CommandId other = enlist(1, from, {6, 5}, Direction::send);
  pass(milliseconds(50));
  EXPECT_EQ(fleet_.node(0).outcome(one), nullptr) << "nobody has failed yet";
  for (const Rank rank : from.ranks) fleet_.node(rank).stop();
  const CommandId receives = enlist(2, to, {6, 4}, Direction::recv);
  EXPECT_EQ(fleet_.wait(2, receives).status.code, Code::invalid_argument);
  pass(milliseconds(50));
  for (const Rank rank : from.ranks) fleet_.node(rank).resume();
  for (const auto& [rank, id] : {std::pair(0, one), std::pair(1, other)}) {
    const Outcome outcome = fleet_.wait(rank, id);
    EXPECT_EQ(outcome.status.code, Code::invalid_argument) << outcome.status.message;
    EXPECT_THAT(outcome.status.message, HasSubstr("rank 1 has a tensor of shape (6, 5)"));
  }
}

// proves: B3.2
TEST_P(AgentTest, PartialOnBothSidesFailsEverywhere) {
  const TestSide from = side("train", {0}, Partial{});
  const TestSide to = side("infer", {1}, Partial{});
  fleet_.add(from);
  fleet_.add(to);
  const CommandId one = fleet_.init(0, from, "infer");
  const CommandId other = fleet_.init(1, to, "train");
  EXPECT_THAT(fleet_.wait(0, one).status.message, HasSubstr("Partial"));
  EXPECT_THAT(fleet_.wait(1, other).status.message, HasSubstr("Partial"));
}

// proves: B3.2
TEST_P(AgentTest, APartialSideCanOnlySend) {
  const TestSide from = side("train", {0, 1}, Partial{});
  const TestSide to = side("infer", {2}, Replicate{});
  fleet_.set_up(from, to, whole);
  fleet_.fill(from, whole, 10);
  fleet_.wait_ok({{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}});
  fleet_.for_each(to, 2, whole,
                  [&](std::int64_t number, std::int64_t i) { EXPECT_EQ(number, 2 * (10 + i)); });
  EXPECT_EQ(fleet_.wait(2, fleet_.send(2)).status.code, Code::invalid_argument);
  EXPECT_EQ(fleet_.wait(0, fleet_.recv(0)).status.code, Code::invalid_argument);
}

// proves: B3.5
TEST_P(AgentTest, TensorsThatDoNotMatchFailOnBothSidesAndAreNamed) {
  fleet_.add(train_);
  fleet_.add(infer_);
  std::vector<std::pair<Rank, CommandId>> ids;
  for (const Rank rank : train_.ranks) ids.emplace_back(rank, fleet_.init(rank, train_, "infer"));
  for (const Rank rank : infer_.ranks) ids.emplace_back(rank, fleet_.init(rank, infer_, "train"));
  fleet_.wait_ok(ids);
  ids.clear();
  for (const Rank rank : train_.ranks) ids.emplace_back(rank, fleet_.enlist(rank, train_, {6, 4}));
  for (const Rank rank : infer_.ranks) ids.emplace_back(rank, fleet_.enlist(rank, infer_, {6, 8}));
  for (const auto& [rank, id] : ids) {
    const Outcome outcome = fleet_.wait(rank, id);
    EXPECT_EQ(outcome.status.code, Code::invalid_argument);
    EXPECT_THAT(outcome.status.message, HasSubstr("tensor 0 of pair \"p\""));
  }
  // When all have heard of it, it can be tried again.
  pass(milliseconds(50));
  ids.clear();
  for (const Rank rank : train_.ranks) ids.emplace_back(rank, fleet_.enlist(rank, train_, whole));
  for (const Rank rank : infer_.ranks) ids.emplace_back(rank, fleet_.enlist(rank, infer_, whole));
  fleet_.wait_ok(ids);
}

// proves: B3.1
TEST_P(AgentTest, WithoutMeshesRanksFaceEachOtherOneToOne) {
  TestSide from{"train", {4, 0}, std::nullopt};
  TestSide to{"infer", {1, 9}, std::nullopt};
  fleet_.set_up(from, to, whole);
  for (const Rank rank : from.ranks) {
    std::ranges::fill(fleet_.loans.at({rank, "train"})->numbers(0), rank);
  }
  fleet_.wait_ok(
      {{4, fleet_.send(4)}, {0, fleet_.send(0)}, {1, fleet_.recv(1)}, {9, fleet_.recv(9)}});
  EXPECT_EQ(fleet_.loans.at({1, "infer"})->numbers(0)[5], 0);
  EXPECT_EQ(fleet_.loans.at({9, "infer"})->numbers(0)[5], 4);
}

// proves: B3.4, B3.15
TEST_P(AgentTest, APairThatWaitsBlocksNothingAndSaysWhoIsMissing) {
  fleet_.set_up(train_, infer_, whole);
  const CommandId waits = fleet_.init(0, side("x", {0}, Replicate{}), "y", in(seconds(30)), "q");
  fleet_.fill(train_, whole, 4);
  fleet_.wait_ok(
      {{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}, {3, fleet_.recv(3)}});
  EXPECT_EQ(fleet_.node(0).outcome(waits), nullptr);
  pass(seconds(30));
  const Outcome outcome = fleet_.wait(0, waits);
  EXPECT_EQ(outcome.status.code, Code::timeout);
  EXPECT_THAT(outcome.status.message, HasSubstr("side \"y\" of pair \"q\" has no ranks yet"));
}

// proves: B3.11
TEST_P(AgentTest, BothNamesOfAPairOnOneAgent) {
  const TestSide from = side("train", {0}, Replicate{});
  const TestSide to = side("infer", {0}, Replicate{});
  fleet_.set_up(from, to, whole);
  fleet_.fill(from, whole, 12);
  EXPECT_EQ(fleet_.wait(0, fleet_.send(0)).status.code, Code::invalid_argument);
  const CommandId send = fleet_.send(0, Deadline::never(), "train");
  fleet_.wait_ok({{0, send}, {0, fleet_.recv(0, Deadline::never(), "infer")}});
  fleet_.expect(to, 0, whole, 12);
}

// proves: B3.3
TEST_P(AgentTest, AFurtherReceiverSideJoinsARunningSender) {
  fleet_.set_up(train_, infer_, whole);
  fleet_.fill(train_, whole, 1);
  fleet_.wait_ok(
      {{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}, {3, fleet_.recv(3)}});
  const TestSide more = side("more", {7, 8, 9}, Shard{0});
  fleet_.add(more);
  std::vector<std::pair<Rank, CommandId>> ids;
  for (const Rank rank : more.ranks) ids.emplace_back(rank, fleet_.init(rank, more, "train"));
  fleet_.wait_ok(ids);
  ids.clear();
  for (const Rank rank : more.ranks) ids.emplace_back(rank, fleet_.enlist(rank, more, whole));
  fleet_.wait_ok(ids);
  fleet_.fill(train_, whole, 2);
  ids.clear();
  for (const Rank rank : {0, 1}) ids.emplace_back(rank, fleet_.send(rank));
  for (const Rank rank : {2, 3, 7, 8, 9}) ids.emplace_back(rank, fleet_.recv(rank));
  fleet_.wait_ok(ids);
  for (const Rank rank : more.ranks) fleet_.expect(more, rank, whole, 2);
  // "train" has named "infer": it takes nothing from others.
  EXPECT_EQ(fleet_.wait(7, fleet_.send(7)).status.code, Code::invalid_argument);
}

// proves: B3.12, B5.12
TEST_P(AgentTest, AQuerySaysWhetherARoundIsThere) {
  fleet_.set_up(train_, infer_, whole);
  const auto ask = [&](Rank rank, bool wait, std::optional<std::int64_t> round = std::nullopt) {
    return fleet_.node(rank).submit(QuerySignal{"b", wait, round, std::nullopt});
  };
  EXPECT_FALSE(fleet_.wait(2, ask(2, false)).signal);
  EXPECT_FALSE(fleet_.wait(0, ask(0, false)).signal);
  const CommandId later = ask(2, true);
  fleet_.send(0);
  fleet_.send(1);
  EXPECT_TRUE(fleet_.wait(2, later).signal);
  EXPECT_TRUE(fleet_.wait(0, ask(0, false)).signal);
  fleet_.wait_ok({{2, fleet_.recv(2)}});
  EXPECT_FALSE(fleet_.wait(2, ask(2, false)).signal);
  EXPECT_TRUE(fleet_.wait(2, ask(2, false, 1)).signal);
  EXPECT_FALSE(fleet_.wait(2, ask(2, false, 2)).signal);
}

// proves: B3.12
TEST_P(AgentTest, AQueryThatWaitsInVainNamesThoseWhoAreMissing) {
  fleet_.set_up(train_, infer_, whole);
  const auto soon = [&] {
    return Deadline(fleet_.cluster.clock().now() + std::chrono::milliseconds(500));
  };
  const auto told = [&](Rank rank, std::optional<std::int64_t> round) {
    const Command query = QuerySignal{"b", true, round, std::nullopt};
    const Outcome outcome = fleet_.wait(rank, fleet_.node(rank).submit(query, nullptr, soon()));
    EXPECT_EQ(outcome.status.code, Code::timeout);
    return outcome.status.message;
  };
  const CommandId sending = fleet_.send(0);
  EXPECT_NE(told(2, std::nullopt).find(": rank 1 has not offered one"), std::string::npos);
  EXPECT_NE(told(2, 1).find(": rank 1 has not offered round 1"), std::string::npos);
  EXPECT_NE(told(2, 2).find(": rank 0, 1 has not offered round 2"), std::string::npos);
  EXPECT_NE(told(1, std::nullopt).find("this rank itself has not sent round 1"), std::string::npos);
  // Who has taken a round back had offered it.
  fleet_.node(0).cancel(sending, {Code::cancelled, "given up"});
  fleet_.wait(0, sending);
  EXPECT_NE(told(2, 1).find(": rank 1 has not offered round 1"), std::string::npos);
}

// proves: B3.5, B3.7, B3.14
TEST_P(AgentTest, ALiveBatchIsNotReplacedAndAnOldHandlerClosesOnlyItsOwn) {
  fleet_.set_up(train_, infer_, whole);
  const std::uint64_t old = fleet_.registrations.at({0, "train"});
  const auto loan = fleet_.loans.at({0, "train"});
  EXPECT_EQ(fleet_.wait(0, fleet_.enlist(0, train_, whole)).status.code, Code::invalid_argument);
  fleet_.loans[{0, "train"}] = loan;
  // A registration that is not the living one: nothing happens.
  fleet_.wait_ok({{0, fleet_.node(0).submit(CloseBatch{"b", old + 1})}});
  fleet_.fill(train_, whole, 4);
  fleet_.wait_ok(
      {{0, fleet_.send(0)}, {1, fleet_.send(1)}, {2, fleet_.recv(2)}, {3, fleet_.recv(3)}});
  fleet_.wait_ok({{0, fleet_.node(0).submit(CloseBatch{"b", old})}});
  EXPECT_EQ(fleet_.wait(0, fleet_.send(0)).status.code, Code::invalid_argument);
}

}  // namespace
}  // namespace tensorbus::bus::simulation
