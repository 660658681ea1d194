// A worker that is told that a registration is over may tell others, who must find the store of the
// same opinion.
#include <gtest/gtest.h>

#include "bus/simulation/fixture.h"

namespace tensorbus::bus::simulation {
namespace {

using std::chrono::seconds;

const Shape small{6, 4};

class WithdrawalTest : public testing::TestWithParam<std::uint64_t> {
 protected:
  bool is_shown(Rank rank) {
    return fleet_.cluster.store().values.contains(to_text(BatchKey{"b", "train", rank}));
  }
  // Both sides know their pair.
  void meet() {
    fleet_.add(train_);
    fleet_.add(infer_);
    fleet_.wait_ok({{0, fleet_.init(0, train_, "infer")}, {1, fleet_.init(1, infer_, "train")}});
  }
  // Enough for everybody to hear what there is to hear.
  void pass_time() {
    const TimePoint later = fleet_.cluster.clock().now() + std::chrono::milliseconds(50);
    fleet_.cluster.run_until([&] { return fleet_.cluster.clock().now() >= later; });
  }
  Deadline in(Duration time) { return Deadline(fleet_.cluster.clock().now() + time); }

  Fleet fleet_{GetParam()};
  TestSide train_ = side("train", {0}, Replicate{});
  TestSide infer_ = side("infer", {1}, Replicate{});
};

INSTANTIATE_TEST_SUITE_P(Seeds, WithdrawalTest, testing::Range<std::uint64_t>(1, 9));

TEST_P(WithdrawalTest, WhatDidNotRegisterInTimeIsGoneWhenItsWorkerHearsOfIt) {
  meet();
  const CommandId alone = fleet_.enlist(0, train_, small, in(seconds(1)));
  ASSERT_TRUE(fleet_.cluster.run_until([&] { return is_shown(0); }));
  EXPECT_EQ(fleet_.wait(0, alone).status.code, Code::timeout);
  EXPECT_FALSE(is_shown(0));
}

TEST_P(WithdrawalTest, WhatWasClosedIsGoneWhenItsWorkerHearsOfIt) {
  fleet_.set_up(train_, infer_, small);
  fleet_.wait_ok({{0, fleet_.close(0, train_)}});
  EXPECT_FALSE(is_shown(0));
}

// Both try again with what fits, as soon as they have heard.
TEST_P(WithdrawalTest, TheOtherSideDoesNotCompareWithWhatIsOver) {
  meet();
  for (int time = 0; time < 10; ++time) {
    const Shape other{6, 4 + time};
    fleet_.wait(0, fleet_.enlist(0, train_, other, in(seconds(1))));
    const CommandId reads = fleet_.enlist(1, infer_, small);
    fleet_.wait_ok({{0, fleet_.enlist(0, train_, small)}, {1, reads}});
    fleet_.wait_ok({{0, fleet_.close(0, train_)}, {1, fleet_.close(1, infer_)}});
  }
}

// The agent of rank 1 knows of the registration that is over, and hears of its end after rank 1 has
// registered.
TEST_P(WithdrawalTest, AnAgentThatHearsLateDoesNotCompareWithWhatIsOver) {
  meet();
  const CommandId alone = fleet_.enlist(0, train_, {6, 5}, in(seconds(1)));
  ASSERT_TRUE(fleet_.cluster.run_until([&] { return is_shown(0); }));
  pass_time();
  fleet_.cluster.weather.far.insert(1);
  EXPECT_EQ(fleet_.wait(0, alone).status.code, Code::timeout);
  const CommandId reads = fleet_.enlist(1, infer_, small);
  pass_time();
  fleet_.cluster.weather.far.clear();
  pass_time();
  fleet_.wait_ok({{0, fleet_.enlist(0, train_, small)}, {1, reads}});
}

TEST_P(WithdrawalTest, AStoreThatDoesNotAnswerHoldsNobodyUp) {
  meet();
  const CommandId alone = fleet_.enlist(0, train_, small, in(seconds(5)));
  ASSERT_TRUE(fleet_.cluster.run_until([&] { return is_shown(0); }));
  const TimePoint deadline = fleet_.cluster.clock().now() + seconds(5);
  fleet_.cluster.weather.far.insert(0);
  EXPECT_EQ(fleet_.wait(0, alone).status.code, Code::timeout);
  EXPECT_LE(fleet_.cluster.clock().now(), deadline + seconds(1));
}

}  // namespace
}  // namespace tensorbus::bus::simulation
