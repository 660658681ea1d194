// Lists of tensors in the store: who writes them, who writes them again, and when they go.
#include "bus/agent/list_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bus/simulation/fixture.h"
#include "bus/simulation/shelf_fixture.h"

namespace tensorbus::bus::simulation {
namespace {

using testing::HasSubstr;

const Shape all_of_it{6, 4};

std::vector<std::string> lists_in(SimulatedStore& store) {
  std::vector<std::string> lists;
  for (const auto& [key, value] : store.values) {
    if (key.starts_with("tensors/")) lists.push_back(key);
  }
  return lists;
}

class ListKeeperTest : public testing::TestWithParam<std::uint64_t> {
 protected:
  ListKeeperTest() : fleet_(GetParam()) {
    fleet_.cluster.store().watcher = [this](const auto& key, const auto& value) {
      if (value && key.starts_with("tensors/")) ++written_[key];
    };
  }

  SimulatedStore& store() { return fleet_.cluster.store(); }
  void lose_all() {
    for (const std::string& key : lists_in(store())) store().set(key, std::nullopt);
  }
  // Both sides know their pair, and have registered nothing.
  void meet() {
    fleet_.add(train_);
    fleet_.add(infer_);
    std::vector<std::pair<Rank, CommandId>> ids;
    for (const Rank rank : train_.ranks) ids.emplace_back(rank, fleet_.init(rank, train_, "infer"));
    for (const Rank rank : infer_.ranks) ids.emplace_back(rank, fleet_.init(rank, infer_, "train"));
    fleet_.wait_ok(ids);
  }
  void pass(std::size_t steps) {
    fleet_.cluster.run_until([] { return false; }, steps);
  }

  Fleet fleet_;
  std::map<std::string, int> written_;
  TestSide train_ = side("train", {0, 1, 2}, Shard{0});
  TestSide infer_ = side("infer", {3, 4}, Shard{1});
};

INSTANTIATE_TEST_SUITE_P(Seeds, ListKeeperTest, testing::Range<std::uint64_t>(1, 6));

// proves: L4.1
TEST_P(ListKeeperTest, WhatTheRanksOfASideSayAlikeIsWrittenOnce) {
  fleet_.set_up(train_, infer_, all_of_it);
  EXPECT_EQ(lists_in(store()).size(), 2u);
  for (const auto& [key, times] : written_) EXPECT_EQ(times, 1) << key;
}

TEST_P(ListKeeperTest, RanksThatSayOtherThingsHaveListsOfTheirOwn) {
  fleet_.set_up(train_, infer_, {7, 4});  // ranks 0 and 1 have three rows, rank 2 has one
  EXPECT_EQ(lists_in(store()).size(), 3u);
  for (const auto& [key, times] : written_) EXPECT_EQ(times, 1) << key;
}

TEST_P(ListKeeperTest, EveryPartOfALongListIsWrittenOnce) {
  meet();
  constexpr std::size_t many = 60'000;
  const SimulatedLoan::Tensor tensor{Dtype::int64, {1, 4}, {}, {}};
  RegisterBatch command;
  command.batch = "b";
  command.registration = 7;
  command.items.assign(many, {"p", "", Dtype::int64, {1, 4}, {4, 1}, std::nullopt});
  command.role = "train";
  fleet_.node(0).submit(command, std::make_shared<SimulatedLoan>(std::vector(many, tensor)));
  ASSERT_TRUE(
      fleet_.cluster.run_until([&] { return lists_in(store()).size() == 2; }));  // megabytes
  pass(5'000);
  for (const auto& [key, times] : written_) EXPECT_EQ(times, 1) << key;
}

TEST_P(ListKeeperTest, AListThatIsLostIsWrittenAgain) {
  fleet_.set_up(train_, infer_, all_of_it);
  const auto before = lists_in(store());
  lose_all();
  EXPECT_TRUE(fleet_.cluster.run_until([&] { return lists_in(store()) == before; }));
}

// Whoever comes late finds all that it needs, whoever wrote it first.
TEST_P(ListKeeperTest, AListOutlivesTheRankThatWroteIt) {
  meet();
  std::vector<std::pair<Rank, CommandId>> ids;
  for (const Rank rank : train_.ranks)
    ids.emplace_back(rank, fleet_.enlist(rank, train_, all_of_it));
  const auto all_there = [&] {
    return std::ranges::count_if(store().values, [](const auto& each) {
             return each.first.starts_with("batch/b/train/");
           }) == 3;
  };
  ASSERT_TRUE(fleet_.cluster.run_until([&] { return all_there() && !lists_in(store()).empty(); }));
  fleet_.node(0).lapse();
  EXPECT_TRUE(lists_in(store()).empty());
  for (const Rank rank : infer_.ranks)
    ids.emplace_back(rank, fleet_.enlist(rank, infer_, all_of_it));
  fleet_.wait_ok(ids);
}

TEST_P(ListKeeperTest, NothingIsLeftWhenAllHaveClosed) {
  fleet_.set_up(train_, infer_, all_of_it);
  fleet_.wait_ok({{0, fleet_.close(0, train_)}});
  pass(5'000);
  EXPECT_EQ(lists_in(store()).size(), 2u) << "others refer to them";
  for (const Rank rank : {1, 2}) fleet_.wait_ok({{rank, fleet_.close(rank, train_)}});
  for (const Rank rank : infer_.ranks) fleet_.wait_ok({{rank, fleet_.close(rank, infer_)}});
  EXPECT_TRUE(fleet_.cluster.run_until([&] { return lists_in(store()).empty(); }));
}

TEST_P(ListKeeperTest, AListThatTheStoreRefusesFailsItsRegistrations) {
  fleet_.set_up(train_, infer_, all_of_it);
  std::vector<std::pair<Rank, CommandId>> ids;
  for (const Rank rank : train_.ranks) ids.emplace_back(rank, fleet_.close(rank, train_));
  for (const Rank rank : infer_.ranks) ids.emplace_back(rank, fleet_.close(rank, infer_));
  fleet_.wait_ok(ids);
  store().refuses = [](const std::string& key) { return key.starts_with("tensors/"); };
  const Deadline soon(fleet_.cluster.clock().now() + std::chrono::seconds(5));
  ids.clear();
  for (const Rank rank : train_.ranks) {
    ids.emplace_back(rank, fleet_.enlist(rank, train_, {9, 4}, soon));
  }
  const Outcome first = fleet_.wait(0, ids[0].second);
  EXPECT_EQ(first.status.code, Code::invalid_argument);
  EXPECT_THAT(first.status.message, HasSubstr("it is too large"));
  // The other ranks are told, or have registered after the failure and wait for the next try.
  for (const auto& [rank, id] : ids) EXPECT_FALSE(fleet_.wait(rank, id).status.ok()) << rank;
}

class ShelfListTest : public ShelfTest {};

TEST_F(ShelfListTest, AShelfKeepsItsListWhenTheWorkersAreGone) {
  open(trainer, 2);
  publish_all(100);
  for (const Rank rank : trainer.ranks) fleet.node(rank).replace_worker();
  fleet.cluster.run_until([] { return false; }, 5'000);
  for (const std::string& key : lists_in(fleet.cluster.store())) {
    fleet.cluster.store().set(key, std::nullopt);
  }
  open(engine, 0);
  expect_pulled(10, 1, 100);
  expect_pulled(11, 1, 100);
}

}  // namespace
}  // namespace tensorbus::bus::simulation
