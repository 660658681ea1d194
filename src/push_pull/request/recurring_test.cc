#include "push_pull/request/recurring.h"

#include <gtest/gtest.h>

#include "push_pull/testing/cluster.h"

namespace tensorbus::push_pull {
namespace {

Likeness likeness_of(const std::vector<Item>& pushes, const std::vector<Item>& pulls = {}) {
  Likeness likeness;
  likeness.take(pushes, pulls);
  return likeness;
}

TEST(LikenessTest, WhateverChangesIsAnotherRequest) {
  Tensor tensor(Dtype::float32, {4, 6});
  const Item item = tensor.item(3);
  const Likeness same = likeness_of({item});
  EXPECT_EQ(same, likeness_of({tensor.item(3)}));

  std::vector<Item> others(6, item);
  others[0].key = 4;
  others[1].tensor.data += 4;
  others[2].tensor.dtype = Dtype::int32;
  const std::vector<std::int64_t> shape{6, 4};
  others[3].tensor.shape = shape;
  const std::vector<std::int64_t> strides{1, 6};
  others[4].tensor.strides = strides;
  others[5].tensor.read_only = true;
  for (const Item& other : others) EXPECT_NE(same, likeness_of({other}));
  EXPECT_NE(same, likeness_of({}, {item})) << "pulled, not pushed";
  EXPECT_NE(same, likeness_of({item, item}));
  EXPECT_NE(likeness_of({item, item}), likeness_of({item}, {item}));
}

TEST(LikenessTest, TensorsAreToldApartFromTheirDimensions) {
  Tensor flat(Dtype::uint8, {1, 1});
  const std::vector<std::int64_t> none;
  Item scalar = flat.item(1);
  scalar.tensor.shape = none;
  scalar.tensor.strides = none;
  EXPECT_NE(likeness_of({flat.item(1)}), likeness_of({scalar}));
}

class RecurringTest : public testing::Test {
 protected:
  struct TestRequest {
    std::uint64_t number = 0;
    bool may_go = true;
  };

  Likeness likeness(std::int64_t key) { return likeness_of({tensor_.item(key)}); }
  bool put(const Likeness& likeness, TestRequest& request) {
    auto* const place =
        recurring_.place_for(likeness, [](const TestRequest& other) { return other.may_go; });
    if (place == nullptr) return false;
    if (place->request != nullptr) recurring_.remove(recurring_.number_of(*place));
    request.number = recurring_.number_of(*place);
    recurring_.put(*place, likeness, request);
    return true;
  }

  Tensor tensor_{Dtype::uint8, {4}};
  Recurring<TestRequest> recurring_;
};

TEST_F(RecurringTest, KnowsWhatItHolds) {
  TestRequest request;
  EXPECT_EQ(recurring_.find(likeness(1)), nullptr);
  ASSERT_TRUE(put(likeness(1), request));
  EXPECT_EQ(recurring_.find(likeness(1)), &request);
  EXPECT_EQ(recurring_.find(likeness(2)), nullptr);
  EXPECT_EQ(recurring_.size(), 1U);
  recurring_.remove(request.number);
  EXPECT_EQ(recurring_.find(likeness(1)), nullptr);
  EXPECT_EQ(recurring_.size(), 0U);
}

TEST_F(RecurringTest, ANumberIsFoundAsLongAsItNamesTheSame) {
  EXPECT_EQ(recurring_.find(Standing{}), nullptr);
  TestRequest first;
  ASSERT_TRUE(put(likeness(1), first));
  const Standing standing = recurring_.standing(first.number);
  EXPECT_EQ(recurring_.find(standing), &first);
  recurring_.remove(first.number);
  EXPECT_EQ(recurring_.find(standing), nullptr);
  TestRequest second;
  ASSERT_TRUE(put(likeness(1), second));
  ASSERT_EQ(second.number, first.number);
  EXPECT_EQ(recurring_.find(standing), nullptr) << "another has the number now";
  EXPECT_EQ(recurring_.find(recurring_.standing(second.number)), &second);
}

TEST_F(RecurringTest, OftenIsEightTimes) {
  for (int round = 0; round < 2; ++round) {
    for (int i = 1; i <= 10; ++i) EXPECT_EQ(recurring_.comes_often(likeness(round)), i >= 8);
  }
}

TEST_F(RecurringTest, WhatIsUsedStaysWhenThereAreTooMany) {
  TestRequest favourite;
  put(likeness(0), favourite);
  std::vector<TestRequest> others(10 * wire::most_standing);
  for (std::size_t i = 0; i < others.size(); ++i) {
    ASSERT_EQ(recurring_.find(likeness(0)), &favourite);
    ASSERT_TRUE(put(likeness(static_cast<std::int64_t>(i) + 1), others[i]));
    ASSERT_GE(others[i].number, 1U);
    ASSERT_LE(others[i].number, wire::most_standing);
  }
  EXPECT_LE(recurring_.size(), wire::most_standing);
}

TEST_F(RecurringTest, WhatMustNotGoStays) {
  std::vector<TestRequest> requests(10 * wire::most_standing);
  std::size_t stay = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].may_go = false;
    stay += put(likeness(static_cast<std::int64_t>(i)), requests[i]) ? 1U : 0U;
  }
  EXPECT_EQ(stay, wire::most_standing);
  EXPECT_EQ(recurring_.size(), wire::most_standing);
}

}  // namespace
}  // namespace tensorbus::push_pull
