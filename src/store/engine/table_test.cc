#include "store/engine/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorbus::store {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

TimePoint at_second(int second) { return TimePoint(seconds(second)); }

class TableTest : public testing::Test {
 protected:
  void set(std::string_view key, std::string_view value, LeaseId lease = 0) {
    const EntryView entry{key, value};
    table.set({&entry, 1}, lease, changed);
  }
  std::size_t erase(std::string_view key) { return table.erase({&key, 1}, changed); }
  std::string value(std::string_view key) const {
    const Record* record = table.find(key);
    return record == nullptr ? "(absent)" : record->value;
  }

  Table table;
  Table::Changed changed;
};

// proves: K2
TEST_F(TableTest, AnEmptyValueIsPresent) {
  EXPECT_FALSE(table.present("key"));
  set("key", "");
  EXPECT_TRUE(table.present("key"));
}

TEST_F(TableTest, AllKeysOfOneSetHaveOneRevision) {
  const std::vector<EntryView> entries{{"a", "1"}, {"b", "2"}};
  table.set(entries, 0, changed);
  EXPECT_EQ(table.find("a")->revision, table.find("b")->revision);
  EXPECT_THAT(changed, ElementsAre("a", "b"));
}

// proves: K3
TEST_F(TableTest, EraseSaysHowManyExistedAndLeavesNoTrace) {
  set("key", "x");
  const std::uint64_t before = table.revision();
  EXPECT_EQ(erase("absent"), 0U);
  EXPECT_EQ(table.revision(), before);
  EXPECT_EQ(erase("key"), 1U);
  EXPECT_GT(table.revision(), before);
  EXPECT_EQ(erase("key"), 0U);
}

TEST_F(TableTest, AddRefusesTextAndOverflowAndChangesNothing) {
  set("text", "7 apples");
  EXPECT_THROW(table.add("text", 1, changed), Error);
  set("full", "9223372036854775807");
  const std::uint64_t before = table.revision();
  EXPECT_THROW(table.add("full", 1, changed), Error);
  EXPECT_EQ(value("full"), "9223372036854775807");
  EXPECT_EQ(table.revision(), before);
  EXPECT_EQ(table.add("full", -1, changed), 9223372036854775806);
}

TEST_F(TableTest, SwapTellsAbsentFromEmpty) {
  EXPECT_FALSE(table.swap("key", "", "x", changed).swapped);
  set("key", "");
  EXPECT_FALSE(table.swap("key", std::nullopt, "x", changed).swapped);
  EXPECT_TRUE(table.swap("key", "", "x", changed).swapped);
}

TEST_F(TableTest, AppendStopsAtTheLargestValue) {
  set("key", std::string(max_value_size - 1, 'x'));
  table.append("key", "y", changed);
  EXPECT_THROW(table.append("key", "z", changed), Error);
  EXPECT_EQ(table.find("key")->value.size(), max_value_size);
}

TEST_F(TableTest, AQueueWithoutElementsIsAbsent) {
  table.push("queue", "1", changed);
  table.push("queue", "2", changed);
  EXPECT_TRUE(table.present("queue"));
  EXPECT_EQ(table.pop("queue", changed),
            std::pair(std::size_t{2}, std::optional<std::string>("1")));
  EXPECT_EQ(table.pop("queue", changed),
            std::pair(std::size_t{1}, std::optional<std::string>("2")));
  EXPECT_FALSE(table.present("queue"));
  EXPECT_EQ(table.pop("queue", changed).first, 0U);
}

// proves: K6
TEST_F(TableTest, RevokeRemovesTheKeysThatAreStillItsOwn) {
  table.grant(1, seconds(10), at_second(0));
  table.grant(2, seconds(10), at_second(0));
  set("a", "", 1);
  set("b", "", 1);
  set("b", "");  // without a lease: nobody's
  set("c", "", 1);
  set("c", "", 2);  // another's
  set("d", "", 1);
  table.add("n", 1, changed);
  changed.clear();
  table.revoke(1, changed);
  EXPECT_THAT(changed, ElementsAre("a", "d"));
  EXPECT_EQ(value("b"), "");
  EXPECT_EQ(value("c"), "");
  table.revoke(2, changed);
  EXPECT_EQ(value("c"), "(absent)");
  EXPECT_THAT(table.leases(), IsEmpty());
}

TEST_F(TableTest, ALeaseExpiresWhenItWasNotRefreshed) {
  table.grant(1, seconds(10), at_second(0));
  table.grant(2, seconds(5), at_second(0));
  EXPECT_EQ(table.next_expiry(), at_second(5));
  EXPECT_THAT(table.expired(at_second(4)), IsEmpty());
  EXPECT_THAT(table.expired(at_second(5)), ElementsAre(2));
  EXPECT_TRUE(table.refresh(2, at_second(4)));
  EXPECT_EQ(table.next_expiry(), at_second(9));
  EXPECT_THAT(table.expired(at_second(10)), ElementsAre(2, 1));
  EXPECT_FALSE(table.refresh(3, at_second(0)));
}

TEST_F(TableTest, ASetUnderALostLeaseChangesNothing) {
  EXPECT_THROW(set("key", "x", 9), Error);
  EXPECT_EQ(table.revision(), 0U);
  EXPECT_FALSE(table.present("key"));
}

}  // namespace
}  // namespace tensorbus::store
