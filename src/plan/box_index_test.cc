#include "plan/box_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace tensorbus::plan {
namespace {

using testing::ElementsAre;

// The cells of a square, row by row, each of 3 x 3 elements.
std::vector<Bounds> cells_of_square(std::int64_t side) {
  std::vector<Bounds> cells;
  for (std::int64_t row = 0; row < side; ++row) {
    for (std::int64_t column = 0; column < side; ++column) {
      cells.push_back({{row * 3, row * 3 + 3}, {column * 3, column * 3 + 3}});
    }
  }
  return cells;
}

// The shards of as many ranks along one dimension.
std::vector<Bounds> rows(std::int64_t count) {
  std::vector<Bounds> rows;
  for (std::int64_t row = 0; row < count; ++row) rows.push_back({{row, row + 1}, {0, 1'000}});
  return rows;
}

// Asked for each of its own boxes, of which every answer is one.
std::size_t most_looked_at(const std::vector<Bounds>& boxes) {
  const BoxIndex index(boxes);
  std::size_t most = 0;
  for (std::size_t at = 0; at < boxes.size(); ++at) {
    const BoxIndex::Found found = index.find(boxes[at]);
    EXPECT_THAT(found.boxes, ElementsAre(at));
    most = std::max(most, found.looked_at);
  }
  return most;
}

// proves: L2.4
TEST(BoxIndexTest, WhatAQuestionCostsGrowsWithTheLogarithmOfTheBoxes) {
  for (const auto& [few, many] :
       {std::pair(cells_of_square(8), cells_of_square(64)), std::pair(rows(64), rows(4'096))}) {
    ASSERT_EQ(few.size(), 64U);
    ASSERT_EQ(many.size(), 4'096U);
    // The logarithm of 4,096 is twice that of 64.
    EXPECT_LE(most_looked_at(many), 2 * most_looked_at(few));
    EXPECT_LT(most_looked_at(few), few.size());
  }
}

// proves: L2.4
TEST(BoxIndexTest, WhatAQuestionCostsGrowsWithWhatItFinds) {
  const BoxIndex index(rows(4'096));
  const std::size_t one = index.find({{7, 8}, {0, 1}}).looked_at;
  for (const std::int64_t pieces : {2, 16, 128, 1'024}) {
    const BoxIndex::Found found = index.find({{7, 7 + pieces}, {0, 1}});
    EXPECT_EQ(found.boxes.size(), static_cast<std::size_t>(pieces));
    EXPECT_LE(found.looked_at, one + 3 * found.boxes.size() + one);
  }
}

}  // namespace
}  // namespace tensorbus::plan
