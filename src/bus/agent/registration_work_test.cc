// Registration costs a rank the same work however the other ranks come: a side is put together when
// it is complete, and not at every change.
#include <gtest/gtest.h>

#include <numeric>

#include "bus/match/work.h"
#include "bus/simulation/fixture.h"

namespace tensorbus::bus::simulation {
namespace {

struct Work {
  double sides;
  double passages;
};

// Of each of `size` + `size` ranks that register.
Work work_of(std::int64_t size, std::uint64_t seed) {
  std::vector<Rank> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const TestSide train = side("train", ranks, Shard{0});
  std::iota(ranks.begin(), ranks.end(), static_cast<Rank>(size));
  const TestSide infer = side("infer", ranks, Shard{1});
  Fleet fleet(seed);
  const MatchingWork before = matching_work();
  fleet.set_up(train, infer, {size, size});
  const MatchingWork after = matching_work();
  const auto all = 2.0 * static_cast<double>(size);
  return {static_cast<double>(after.sides - before.sides) / all,
          static_cast<double>(after.passages - before.passages) / all};
}

class RegistrationWorkTest : public testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RegistrationWorkTest, testing::Range<std::uint64_t>(1, 3));

TEST_P(RegistrationWorkTest, OfARankDoesNotGrowWithTheRanks) {
  for (const std::int64_t size : {2, 8, 16}) {
    const Work work = work_of(size, GetParam());
    // Two of each, its own side and the facing one, as a sender and as a reader; few ranks see a
    // side change once more.
    EXPECT_LE(work.sides, 3) << size << "+" << size << " ranks";
    EXPECT_LE(work.passages, 3) << size << "+" << size << " ranks";
    EXPECT_GT(work.sides, 0);
    EXPECT_GT(work.passages, 0);
  }
}

}  // namespace
}  // namespace tensorbus::bus::simulation
