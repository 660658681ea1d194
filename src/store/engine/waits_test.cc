#include "store/engine/waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorbus::store {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Condition pattern(std::string text, std::size_t count,
                  std::optional<std::string> value = std::nullopt) {
  return {std::move(text), true, count, std::move(value), {}};
}

Condition key(std::string name, std::optional<std::string> value = std::nullopt) {
  return {std::move(name), false, 1, std::move(value), {}};
}

class WaitsTest : public testing::Test {
 protected:
  std::vector<Ticket> set(std::vector<EntryView> entries) {
    Table::Changed changed;
    table.set(entries, 0, changed);
    return tickets(changed);
  }
  std::vector<Ticket> erase(std::string_view name) {
    Table::Changed changed;
    table.erase({&name, 1}, changed);
    return tickets(changed);
  }
  std::vector<Ticket> tickets(const Table::Changed& changed) {
    ready = waits.after_change(changed);
    std::vector<Ticket> found;
    for (const Waits::Ready& one : ready) found.push_back(one.ticket);
    return found;
  }

  Table table;
  Waits waits{table};
  std::vector<Waits::Ready> ready;
};

// proves: K5
TEST_F(WaitsTest, AKeyThatIsThereNeedsNoWait) {
  set({{"/a", "x"}});
  EXPECT_EQ(waits.add(1, key("/a"))->value, "x");
  EXPECT_EQ(waits.size(), 0U);
}

// proves: K5
TEST_F(WaitsTest, AWaitEndsAtItsValueOnly) {
  EXPECT_FALSE(waits.add(1, key("/a", "go")));
  EXPECT_THAT(set({{"/a", "stop"}}), IsEmpty());
  EXPECT_THAT(set({{"/b", "go"}}), IsEmpty());
  EXPECT_THAT(set({{"/a", "go"}}), ElementsAre(1));
  EXPECT_EQ(waits.size(), 0U);
}

// proves: K5
TEST_F(WaitsTest, KeysThatWereThereAtDifferentMomentsDoNotCount) {
  EXPECT_FALSE(waits.add(1, pattern("/[ab]", 2)));
  EXPECT_FALSE(waits.add_all(2, {"/a", "/b"}));
  set({{"/a", ""}});
  erase("/a");
  EXPECT_THAT(set({{"/b", ""}}), IsEmpty());
  EXPECT_THAT(set({{"/a", ""}}), SizeIs(2));
}

// proves: K5
TEST_F(WaitsTest, ResultsAreSortedAndCut) {
  EXPECT_FALSE(waits.add(1, pattern("/*", 2)));
  EXPECT_FALSE(waits.add(2, pattern("/*", 3)));
  EXPECT_THAT(set({{"/c", ""}, {"/a", ""}, {"/b", ""}}), ElementsAre(1, 2));
  EXPECT_THAT(ready[0].result.keys, ElementsAre("/a", "/b"));
  EXPECT_THAT(ready[1].result.keys, ElementsAre("/a", "/b", "/c"));
}

// proves: K5
TEST_F(WaitsTest, APatternThatWasWaitedForBeforeSeesWhatChangedSince) {
  set({{"/r/0", "1"}});
  EXPECT_THAT(waits.add(1, pattern("/r/*", 1))->keys, ElementsAre("/r/0"));
  set({{"/r/1", "1"}, {"/s", ""}});
  EXPECT_THAT(waits.add(2, pattern("/r/*", 2))->keys, ElementsAre("/r/0", "/r/1"));
  erase("/r/0");
  EXPECT_THAT(waits.add(3, pattern("/r/*", 1))->keys, ElementsAre("/r/1"));
  EXPECT_FALSE(waits.add(4, pattern("/r/*", 2)));
  EXPECT_THAT(*waits.remove(4), HasSubstr("1 of 2"));
  EXPECT_FALSE(waits.add(5, pattern("/r/*", 2)));
  EXPECT_THAT(set({{"/r/2", ""}}), ElementsAre(5));
  EXPECT_EQ(waits.size(), 0U);
}

TEST_F(WaitsTest, ManyPatternsOneAfterTheOtherAreAnswered) {
  const auto name = [](int number) { return "/" + std::to_string(number) + "/*"; };
  for (int number = 0; number < 50; ++number) {
    EXPECT_FALSE(waits.add(1, pattern(name(number), 1)));
    const std::string key = "/" + std::to_string(number) + "/x";
    EXPECT_THAT(set({{key, ""}}), ElementsAre(1));
    EXPECT_TRUE(waits.add(2, pattern(name(number / 2), 1)));
  }
  // Many that one change ends together.
  for (int number = 0; number < 50; ++number) {
    const auto ticket = static_cast<Ticket>(number);
    EXPECT_FALSE(waits.add(ticket, pattern("/all" + std::string(number, '*'), 1)));
  }
  EXPECT_THAT(set({{"/all", ""}}), SizeIs(50));
  EXPECT_EQ(waits.size(), 0U);
}

TEST_F(WaitsTest, AnEndedWaitSaysWhatIsMissing) {
  set({{"/r/0", "1"}, {"/r/1", "0"}});
  waits.add(1, pattern("/r/*", 3, "1"));
  waits.add(2, key("/r/1", "1"));
  waits.add_all(3, {"/x", "/r/0", "/y"});
  EXPECT_THAT(*waits.remove(1), HasSubstr("1 of 3 keys match \"r/*\""));
  EXPECT_THAT(*waits.remove(2), HasSubstr("it holds \"0\", not \"1\""));
  EXPECT_EQ(*waits.remove(3), "missing: \"x\", \"y\"");
  EXPECT_FALSE(waits.remove(3));
  EXPECT_THAT(set({{"/r/1", "1"}, {"/x", ""}, {"/y", ""}}), IsEmpty());
}

TEST_F(WaitsTest, AQueueCountsOnlyWhereTorchAsks) {
  waits.add(1, key("/q"));
  waits.add_all(2, {"/q"});
  Table::Changed changed;
  table.push("/q", "element", changed);
  EXPECT_THAT(tickets(changed), ElementsAre(2));
}

}  // namespace
}  // namespace tensorbus::store
