#include "tensorbus/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/testing/refusal.h"

namespace tensorbus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Intervals held(const char* layout, Shape shape, Rank rank, std::size_t dim = 0) {
  return parse_layout(layout).holding(shape, rank).dims[dim];
}

// proves: B4.1, B4.5
TEST(Layout, ShardsAreRoundedUpAndTheLastRanksGetLess) {
  EXPECT_EQ(held("2:S0", {7}, 0), (Intervals{{0, 4}}));
  EXPECT_EQ(held("2:S0", {7}, 1), (Intervals{{4, 7}}));
  EXPECT_EQ(held("4:S0", {2}, 1), (Intervals{{1, 2}}));
  EXPECT_EQ(held("4:S0", {2}, 2), Intervals{});
  EXPECT_EQ(parse_layout("4:S0").local_shape({2, 3}, 3), (Shape{0, 3}));
}

// proves: B4.1
TEST(Layout, NegativeDimensionsCountFromTheEnd) {
  EXPECT_EQ(held("2:S-1", {3, 8}, 1, 1), (Intervals{{4, 8}}));
  EXPECT_EQ(held("2:S-2", {4, 8}, 1, 0), (Intervals{{2, 4}}));
}

// proves: B4.1
TEST(Layout, MeshDimensionsShardOneTensorDimensionLeftToRight) {
  EXPECT_EQ(held("2x2:S0,S0", {10}, 0), (Intervals{{0, 3}}));
  EXPECT_EQ(held("2x2:S0,S0", {10}, 1), (Intervals{{3, 5}}));
  EXPECT_EQ(held("2x2:S0,S0", {10}, 3), (Intervals{{8, 10}}));
}

// proves: B4.1
TEST(Layout, AStridedShardHoldsAPartOfEveryPiece) {
  EXPECT_EQ(held("2:SS0/2", {8}, 0), (Intervals{{0, 2}, {4, 6}}));
  EXPECT_EQ(held("2:SS0/2", {8}, 1), (Intervals{{2, 4}, {6, 8}}));
  // 7 = 4 + 3, cut into 2 + 2 and 2 + 1; parts that meet are one interval.
  EXPECT_EQ(held("2:SS0/2", {7}, 1), (Intervals{{2, 4}, {6, 7}}));
  EXPECT_EQ(held("1:SS0/3", {7}, 0), (Intervals{{0, 7}}));
  // Right-to-left sharding as FSDP over tensor parallelism has it.
  EXPECT_EQ(held("2x2:SS0/2,S0", {8}, 1), (Intervals{{4, 6}}));
  EXPECT_EQ(held("2x2:SS0/2,S0", {8}, 2), (Intervals{{2, 4}}));
}

TEST(Layout, EveryElementOfARandomShardedLayoutIsHeldOnce) {
  std::mt19937 random(7);
  const auto below = [&](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  for (int round = 0; round < 300; ++round) {
    Shape mesh_shape;
    std::vector<Placement> placements;
    for (int dim = below(3) + 1; dim > 0; --dim) {
      mesh_shape.push_back(below(3) + 1);
      if (below(2) == 0) {
        placements.emplace_back(Shard{0});
      } else {
        placements.emplace_back(StridedShard{0, below(4) + 1});
      }
    }
    const Layout layout(Mesh(mesh_shape), placements);
    const std::int64_t length = below(40);
    std::vector<int> holders(static_cast<std::size_t>(length), 0);
    for (const Rank rank : layout.mesh().ranks()) {
      std::int64_t last = -1;
      const Holding holding = layout.holding({length}, rank);
      for (const Interval& interval : holding.dims[0]) {
        EXPECT_GT(interval.begin, last) << to_string(layout) << " of " << length;
        EXPECT_LT(interval.begin, interval.end);
        last = interval.end;
        for (std::int64_t i = interval.begin; i < interval.end; ++i) {
          ++holders[static_cast<std::size_t>(i)];
        }
      }
    }
    EXPECT_THAT(holders, testing::Each(1)) << to_string(layout) << " of " << length;
  }
}

TEST(Layout, HugeDimensionsAreCutWithoutOverflow) {
  const std::int64_t size = (std::int64_t{1} << 60) - 1;
  const Intervals last = held("4096x4:S0,S0", {size}, 16383);
  EXPECT_EQ(last.back().end, size);
  EXPECT_EQ(parse_layout("3:R").local_shape({size, 0}, 2), (Shape{size, 0}));
}

TEST(Layout, TextAndLayoutAreTheSame) {
  for (const char* text : {"8:R", "4x2:S0,S-1", "2x2:SS0/2,S0@4-7", "2:P.avg@9,3", "3:P",
                           "2x3:P.max,R@5,1-4,9", ":"}) {
    EXPECT_EQ(to_string(parse_layout(text)), text);
    EXPECT_EQ(parse_layout(to_string(parse_layout(text))), parse_layout(text));
  }
  EXPECT_EQ(to_string(parse_layout("2:S0@0,1")), "2:S0");
  EXPECT_EQ(parse_shape("8192x16"), (Shape{8192, 16}));
  EXPECT_EQ(parse_shape("scalar"), Shape{});
}

TEST(Layout, BadTextIsRefusedWithTheGrammar) {
  for (const char* text :
       {"",        "4",        "4:",       "4:X",           "4:S",
        "4:SS0",   "4:SS0/x",  "4:P.",     "4:P.xor",       "4:S0,S1",
        "x:S0",    "4@0-3:S0", "4:S0@0-2", "2:S0@1,1",      "2:S0@-1,2",
        "2:SS0/0", "0:S0",     "4:Rx",     "99999999999:R", "2:R@0-99999999999"}) {
    EXPECT_THROW(parse_layout(text), Error) << text;
  }
  EXPECT_THAT(refusal([] { parse_layout("4:X"); }), HasSubstr("SHAPE:P,...[@ranks]"));
  EXPECT_THAT(refusal([] { parse_shape("8y8"); }), HasSubstr("8y8"));
}

TEST(Layout, BadArgumentsAreRefusedSayingWhatWasExpected) {
  EXPECT_THAT(refusal([] {
                Mesh({2, 2}, std::vector<Rank>{0, 1, 2});
              }),
              HasSubstr("needs 4 ranks, but 3 are given"));
  EXPECT_THAT(refusal([] { Mesh({2}, std::vector<Rank>{5, 5}); }), HasSubstr("rank 5"));
  EXPECT_THAT(refusal([] { Layout(Mesh({2, 2}), {Shard{0}}); }), HasSubstr("needs 2 placements"));
  EXPECT_THAT(refusal([] {
                parse_layout("2:S2").holding({4, 4}, 0);
              }),
              HasSubstr("S2 shards a dimension that a tensor of 2 dimensions does not have"));
  EXPECT_THAT(refusal([] { parse_layout("2:S-3").holding({4, 4}, 0); }), HasSubstr("S-3"));
  EXPECT_THAT(refusal([] { parse_layout("2:S0").holding({4}, 2); }),
              HasSubstr("rank 2 is not in the mesh"));
  EXPECT_THAT(refusal([] { parse_layout("2x2:P.max,P"); }), HasSubstr("mixes P.max and P"));
  EXPECT_THAT(refusal([] { parse_layout("1:R").holding({-1}, 0); }), HasSubstr("negative"));
  EXPECT_THAT(refusal([] {
                element_count({std::int64_t{1} << 40, std::int64_t{1} << 40});
              }),
              HasSubstr("63 bits"));
}

TEST(Mesh, FindsAnyRanks) {
  const Mesh mesh({2, 2}, std::vector<Rank>{7, 3, 9, 1});
  EXPECT_EQ(mesh.index_of(9), 2U);
  EXPECT_FALSE(mesh.contains(0));
  EXPECT_THAT(mesh.coordinates_of(2), ElementsAre(1, 0));
  EXPECT_EQ(Mesh({}).size(), 1U);
}

}  // namespace
}  // namespace tensorbus
