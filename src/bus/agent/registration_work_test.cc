// Registration costs a rank the same work however the other ranks come: a side is put together when
// it is complete, and not at every change. And a further rank costs each of the others few bytes.
// proves: L4.1
#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

#include "bus/match/work.h"
#include "bus/simulation/fixture.h"

namespace tensorbus::bus::simulation {
namespace {

std::pair<TestSide, TestSide> sides_of(std::int64_t size) {
  std::vector<Rank> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  TestSide train = side("train", ranks, Shard{0});
  std::iota(ranks.begin(), ranks.end(), static_cast<Rank>(size));
  return {std::move(train), side("infer", ranks, Shard{1})};
}

using Commands = std::vector<std::pair<Rank, CommandId>>;

void pair_up(Fleet& fleet, const TestSide& train, const TestSide& infer) {
  fleet.add(train);
  fleet.add(infer);
  Commands ids;
  for (const Rank rank : train.ranks) ids.emplace_back(rank, fleet.init(rank, train, infer.name));
  for (const Rank rank : infer.ranks) ids.emplace_back(rank, fleet.init(rank, infer, train.name));
  fleet.wait_ok(ids);
}

struct Work {
  double sides;
  double passages;
};

// Of each of `size` + `size` ranks that register.
Work work_of(std::int64_t size, std::uint64_t seed) {
  const auto [train, infer] = sides_of(size);
  Fleet fleet(seed);
  const MatchingWork before = matching_work();
  fleet.set_up(train, infer, {size, size});
  const MatchingWork after = matching_work();
  const auto all = 2.0 * static_cast<double>(size);
  return {static_cast<double>(after.sides - before.sides) / all,
          static_cast<double>(after.passages - before.passages) / all};
}

// Of each of `size` + `size` ranks, where one side has its generation before the ranks of the other
// register one after the other.
double roll_calls_of(std::int64_t size, std::uint64_t seed) {
  const auto [train, infer] = sides_of(size);
  const Shape shape{size, size};
  Fleet fleet(seed);
  pair_up(fleet, train, infer);
  std::int64_t begun = 0;
  fleet.cluster.on_step = [&](Rank, Step step) { begun += step == Step::generation_begun; };
  Commands ids;
  for (const Rank rank : train.ranks) ids.emplace_back(rank, fleet.enlist(rank, train, shape));
  EXPECT_TRUE(fleet.cluster.run_until([&] { return begun == size; }));
  const std::uint64_t before = matching_work().roll_calls;
  for (const Rank rank : infer.ranks) {
    ids.emplace_back(rank, fleet.enlist(rank, infer, shape));
    // Long enough for all to see it on its own.
    for (std::int64_t turn = 0; turn < 40 * size; ++turn) fleet.cluster.step();
  }
  fleet.wait_ok(ids);
  return static_cast<double>(matching_work().roll_calls - before) /
         (2.0 * static_cast<double>(size));
}

// What a rank hears of the store while `size` + `size` ranks register: all of them hear everything.
double bytes_of(std::int64_t size, std::uint64_t seed) {
  const auto [train, infer] = sides_of(size);
  std::size_t bytes = 0;
  Fleet fleet(seed);
  pair_up(fleet, train, infer);
  fleet.cluster.store().watcher = [&](const std::string& key, const auto& value) {
    bytes += key.size() + (value ? value->size() : 0U);
  };
  Commands ids;
  const Shape shape{size, size};
  for (const Rank rank : train.ranks) ids.emplace_back(rank, fleet.enlist(rank, train, shape));
  for (const Rank rank : infer.ranks) ids.emplace_back(rank, fleet.enlist(rank, infer, shape));
  fleet.wait_ok(ids);
  return static_cast<double>(bytes);
}

class RegistrationWorkTest : public testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RegistrationWorkTest, testing::Range<std::uint64_t>(1, 3));

TEST_P(RegistrationWorkTest, OfARankDoesNotGrowWithTheRanks) {
  for (const std::int64_t size : {2, 8, 16, 32}) {
    const Work work = work_of(size, GetParam());
    // Two of each, its own side and the facing one, as a sender and as a reader; few ranks see a
    // side change once more.
    EXPECT_LE(work.sides, 3) << size << "+" << size << " ranks";
    EXPECT_LE(work.passages, 3) << size << "+" << size << " ranks";
    EXPECT_GT(work.sides, 0);
    EXPECT_GT(work.passages, 0);
  }
}

TEST_P(RegistrationWorkTest, AFurtherRankCostsTheOthersFewBytes) {
  double before = bytes_of(8, GetParam());
  for (const std::int64_t size : {16, 32}) {
    const double bytes = bytes_of(size, GetParam());
    EXPECT_LE((bytes - before) / static_cast<double>(size), 200) << size << "+" << size << " ranks";
    EXPECT_GT(bytes, before);
    before = bytes;
  }
}

// Every registration of the other side is a change that all ranks see: what they have to look at
// must not be all ranks.
TEST_P(RegistrationWorkTest, TheSendersOfAGenerationAreNotSoughtAgainForEveryOtherRank) {
  for (const std::int64_t size : {4, 16}) {
    const double calls = roll_calls_of(size, GetParam());
    EXPECT_LE(calls, 5) << size << "+" << size << " ranks";
    EXPECT_GT(calls, 0);
  }
}

}  // namespace
}  // namespace tensorbus::bus::simulation
