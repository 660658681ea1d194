#include "bus/shelf/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

namespace tensorbus::bus {
namespace {

// Publishes a version if there is a slot for it; which.
std::optional<std::size_t> publish(Slots& slots, std::int64_t version, bool withdraw = false) {
  const auto slot = slots.choose(withdraw);
  if (!slot) return std::nullopt;
  slots.take(*slot, version);
  EXPECT_EQ(slots.complete(version), slot);
  return slot;
}

Wish wish_for(Rank reader, std::int64_t version) { return {reader, {version}, std::nullopt}; }

TEST(SlotsTest, FillsEmptySlotsThenTheOldestThatAllHaveANewerVersionThan) {
  Slots slots(2);
  EXPECT_EQ(publish(slots, 1), 0u);
  EXPECT_EQ(publish(slots, 2), 1u);
  EXPECT_EQ(publish(slots, 3), std::nullopt);
  EXPECT_TRUE(slots.holders().empty());
  slots.note_common(1);
  EXPECT_EQ(publish(slots, 3), std::nullopt) << "nothing newer than 1 is everywhere";
  slots.note_common(2);
  EXPECT_EQ(publish(slots, 3), 0u);
  EXPECT_EQ(slots.newest(), 3);
  EXPECT_EQ(publish(slots, 4, true), std::nullopt) << "2 is what all have";
}

TEST(SlotsTest, WhatWillNeverBeEverywhereMayGo) {
  Slots slots(2);
  publish(slots, 1);
  slots.note_common(1);
  publish(slots, 2);
  EXPECT_EQ(slots.choose(false), std::nullopt);
  slots.note_doomed(std::vector<std::int64_t>{2});
  slots.note_doomed({});
  EXPECT_EQ(publish(slots, 4), 1u) << "older news take nothing back";
}

TEST(SlotsTest, TakesSlotsThatNobodyHoldsFirst) {
  Slots slots(3);
  for (const std::int64_t version : {1, 2, 3}) publish(slots, version);
  slots.note_common(3);
  slots.hold(7, wish_for(20, 1));
  EXPECT_EQ(publish(slots, 4), 1u);
  EXPECT_EQ(slots.versions(), (std::vector<std::int64_t>{1, 4, 3}));
  EXPECT_EQ(slots.choose(false), std::nullopt);
  EXPECT_EQ(slots.holders(), std::set<Rank>{20});
  slots.release(7);
  EXPECT_EQ(slots.choose(false), 0u);
}

TEST(SlotsTest, WithdrawsTheOldestIfAllAreHeld) {
  Slots slots(3);
  for (const std::int64_t version : {1, 2, 3}) publish(slots, version);
  slots.note_common(3);
  slots.hold(7, wish_for(20, 2));
  slots.hold(8, {21, {1}, std::nullopt});
  EXPECT_EQ(slots.choose(false), std::nullopt);
  EXPECT_EQ(slots.choose(true), 0u);
}

TEST(SlotsTest, AWishCoversWhatIsYetToCome) {
  Slots slots(2);
  slots.hold(7, {20, {}, 1});
  publish(slots, 1);
  publish(slots, 2);
  slots.note_common(2);
  EXPECT_EQ(slots.choose(false), std::nullopt);
  slots.hold(7, wish_for(20, 2));
  EXPECT_EQ(slots.choose(false), 0u);
}

TEST(SlotsTest, WhatIsGivenUpIsEmptyAndItsTicketIsNotUsedAgain) {
  Slots slots(2);
  const std::uint64_t first = slots.take(0, 1);
  EXPECT_TRUE(slots.give_up());
  EXPECT_FALSE(slots.give_up());
  EXPECT_EQ(slots.complete(1), std::nullopt);
  EXPECT_EQ(slots.choose(false), 0u);
  EXPECT_GT(slots.take(0, 2), first);
  EXPECT_EQ(slots.complete(3), std::nullopt);
  EXPECT_EQ(slots.complete(2), 0u);
}

// Whatever is published, held and heard of the others.
TEST(SlotsTest, TheNewestThatAllHaveStays) {
  std::mt19937_64 random(1);
  for (int run = 0; run < 200; ++run) {
    Slots slots(2 + random() % 3);
    std::uint64_t ticket = 0;
    for (std::int64_t version = 1; version < 60; ++version) {
      if (random() % 3 == 0) slots.hold(random() % 3, {1, {version - 1}, std::nullopt});
      if (random() % 3 == 0) slots.release(random() % 3);
      const auto slot = slots.choose(random() % 2 == 0);
      if (!slot) {
        slots.note_common(slots.newest());
        continue;
      }
      const std::uint64_t now = slots.take(*slot, version);
      EXPECT_GT(now, std::exchange(ticket, now));
      random() % 4 == 0 ? static_cast<void>(slots.give_up())
                        : static_cast<void>(slots.complete(version));
      const auto versions = slots.versions();
      if (slots.common() == 0) continue;
      EXPECT_NE(std::ranges::find(versions, slots.common()), versions.end());
    }
  }
}

}  // namespace
}  // namespace tensorbus::bus
