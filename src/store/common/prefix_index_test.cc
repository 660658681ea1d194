#include "store/common/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tensorbus::store {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int> found(const PrefixIndex<int>& index, std::string_view key) {
  std::vector<int> items;
  index.visit(key, [&](int item) { items.push_back(item); });
  return items;
}

TEST(PrefixIndexTest, AKeyFindsThoseWhosePrefixItHasAndNoOthers) {
  PrefixIndex<int> index;
  index.add("", 1);
  index.add("/a/", 2);
  index.add("/a/", 3);
  index.add("/a/b", 4);
  index.add("/b/", 5);
  EXPECT_THAT(found(index, "/a/b"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(found(index, "/a/c"), ElementsAre(1, 2, 3));
  EXPECT_THAT(found(index, "/a"), ElementsAre(1));
  EXPECT_THAT(found(index, ""), ElementsAre(1));
}

TEST(PrefixIndexTest, OfThousandsAKeyVisitsItsOwnOnly) {
  PrefixIndex<int> index;
  for (int i = 0; i < 20'000; ++i) index.add("/" + std::to_string(100'000 + i) + "/", i);
  EXPECT_THAT(found(index, "/107777/x"), ElementsAre(7777));
  EXPECT_THAT(found(index, "/elsewhere/x"), IsEmpty());
}

TEST(PrefixIndexTest, WhatIsRemovedIsFoundNoMore) {
  PrefixIndex<int> index;
  index.add("/a", 1);
  index.add("/a", 2);
  index.add("/b", 3);
  index.remove("/a", 1);
  EXPECT_THAT(found(index, "/a"), ElementsAre(2));
  index.remove("/a", 2);
  EXPECT_THAT(found(index, "/a"), IsEmpty());
  EXPECT_THAT(found(index, "/b"), ElementsAre(3));
  index.remove("/b", 3);
  EXPECT_TRUE(index.empty());
}

}  // namespace
}  // namespace tensorbus::store
