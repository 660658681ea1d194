#include "bus/shelf/supply.h"

#include <gtest/gtest.h>

#include <vector>

namespace tensorbus::bus {
namespace {

using Views = std::vector<ShelfView>;

TEST(SupplyTest, TheNewestThatAllSourcesHave) {
  const Views sources{{{1, 2}, 2}, {{2, 3}, 3}};
  EXPECT_EQ(supply_of(sources, {}).version, 2);
  EXPECT_EQ(supply_of(Views{{{1, 2}, 2}, {{1, 2}, 2}}, {}).version, 2);
  EXPECT_EQ(supply_of(Views{{{1}, 1}, {{2}, 2}}, {}).version, 0);
  EXPECT_EQ(supply_of(Views{}, {}).version, 0);
}

TEST(SupplyTest, OneAboveAnother) {
  const Views sources{{{1, 2}, 2}, {{1, 2}, 2}};
  EXPECT_EQ(supply_of(sources, {std::nullopt, 1}).version, 2);
  const Supply later = supply_of(sources, {std::nullopt, 2});
  EXPECT_EQ(later.version, 0);
  EXPECT_FALSE(later.gone || later.ended);
}

TEST(SupplyTest, TheVeryOneOrItIsGone) {
  const Views sources{{{3, 4}, 4}, {{4, 5}, 5}};
  EXPECT_EQ(supply_of(sources, {4, 0}).version, 4);
  EXPECT_TRUE(supply_of(sources, {3, 0}).gone) << "recycled at one source";
  const Supply later = supply_of(sources, {6, 0});
  EXPECT_FALSE(later.gone || later.ended);
  const Supply half = supply_of(sources, {5, 0});
  EXPECT_FALSE(half.gone || half.ended) << "the other source will have it";
}

TEST(SupplyTest, AStreamThatHasEnded) {
  const Views one_left{{{3, 4}, 4, true}, {{4}, 4}};
  EXPECT_EQ(supply_of(one_left, {}).version, 4);
  EXPECT_TRUE(supply_of(one_left, {std::nullopt, 4}).ended);
  const Supply behind = supply_of(Views{{{3, 4}, 4, true}, {{3}, 3}}, {std::nullopt, 3});
  EXPECT_FALSE(behind.ended) << "the other source goes on to 4";
  const Supply never = supply_of(Views{{{3, 4}, 4, true}, {{3}, 3, true}}, {std::nullopt, 3});
  EXPECT_TRUE(never.ended);
  EXPECT_TRUE(supply_of(Views{{{3, 4}, 4, true}, {{3, 5}, 5}}, {std::nullopt, 3}).ended);
}

}  // namespace
}  // namespace tensorbus::bus
