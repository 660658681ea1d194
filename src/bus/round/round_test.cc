#include "bus/round/round.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorbus::bus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Mark all_marks[] = {Mark::idle,    Mark::offered,  Mark::read,  Mark::skipped,
                              Mark::revoked, Mark::conflict, Mark::closed};

TEST(Word, PacksAndUnpacks) {
  for (const Mark mark : all_marks) {
    const RoundWord word{mark, (std::int64_t{1} << 60) - 1};
    EXPECT_EQ(unpack(pack(word)), word);
  }
  EXPECT_EQ(unpack(7).mark, Mark::closed);
}

TEST(Word, OutOfOfferedThereIsOneEndAndTheNumberStays) {
  for (const Mark mark : all_marks) {
    for (const Party by : {Party::source, Party::reader}) {
      EXPECT_FALSE(may_change({Mark::offered, 2}, {mark, 3}, by)) << to_string(mark);
      EXPECT_FALSE(may_change({Mark::offered, 2}, {mark, 1}, by)) << to_string(mark);
    }
  }
  EXPECT_FALSE(may_change({Mark::offered, 2}, {Mark::read, 2}, Party::source));
  EXPECT_FALSE(may_change({Mark::offered, 2}, {Mark::revoked, 2}, Party::reader));
  EXPECT_TRUE(may_change({Mark::offered, 2}, {Mark::conflict, 2}, Party::reader));
}

TEST(Word, AnEndStaysUntilALaterRound) {
  for (const Mark end : {Mark::read, Mark::skipped, Mark::revoked, Mark::conflict}) {
    for (const Mark mark : all_marks) {
      EXPECT_FALSE(may_change({end, 2}, {mark, 2}, Party::reader));
      EXPECT_EQ(may_change({end, 2}, {mark, 2}, Party::source), mark == Mark::closed);
    }
    EXPECT_TRUE(may_change({end, 2}, {Mark::offered, 3}, Party::source));
    EXPECT_FALSE(may_change({end, 2}, {Mark::offered, 2}, Party::source));
  }
  EXPECT_FALSE(may_change({Mark::closed, 2}, {Mark::offered, 3}, Party::source));
}

TEST(Choice, TheLargestFloorIsReadWhenAllOfferIt) {
  const SourceView sources[] = {{3, true}, {3, true}};
  const Choice choice = choose(sources);
  EXPECT_EQ(choice.round, 3);
  EXPECT_TRUE(choice.ready);
  EXPECT_THAT(choice.skip, IsEmpty());
}

TEST(Choice, ARoundThatOneSourceHasWithdrawnIsSkippedAtTheOthers) {
  const SourceView sources[] = {{3, true}, {4, false}, {2, false}};
  const Choice choice = choose(sources);
  EXPECT_EQ(choice.round, 4);
  EXPECT_FALSE(choice.ready);
  EXPECT_THAT(choice.skip, ElementsAre(0));
}

TEST(SendOutcome, AllReadIsSuccessEvenIfTheyWereLostAfterwards) {
  const Outcome outcome = send_outcome(
      5, outcomes_of({{2, {{Mark::read, 5}, true, false}}, {3, {{Mark::revoked, 5}, false, true}}}),
      {});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.round, 5);
  EXPECT_THAT(outcome.readers, ElementsAre(std::pair(2, ReaderOutcome::read)));
}

TEST(SendOutcome, WhoHasReadCountsEvenIfItsStartHasNotArrived) {
  const Outcome outcome = send_outcome(5,
                                       outcomes_of({{2, {{Mark::read, 5}, false, true}},
                                                    {3, {{Mark::skipped, 5}, false, true}},
                                                    {4, {{Mark::closed, 5}, true, true}}}),
                                       {});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_THAT(outcome.readers, ElementsAre(std::pair(2, ReaderOutcome::read)));
}

// proves: B3.8
TEST(SendOutcome, SaysHowEachReaderEnded) {
  const Outcome outcome = send_outcome(1,
                                       outcomes_of({{1, {{Mark::read, 1}, false, false}},
                                                    {2, {{Mark::closed, 1}, true, false}},
                                                    {3, {{Mark::skipped, 1}, false, false}}}),
                                       {});
  EXPECT_EQ(outcome.status.code, Code::peer_lost);
  EXPECT_THAT(outcome.status.message, HasSubstr("rank 2"));
  EXPECT_THAT(outcome.lost, ElementsAre(2));
  EXPECT_THAT(outcome.readers,
              ElementsAre(std::pair(1, ReaderOutcome::read), std::pair(2, ReaderOutcome::lost),
                          std::pair(3, ReaderOutcome::failed)));
}

TEST(SendOutcome, WhatEndedItEarlyIsItsStatus) {
  const Outcome outcome = send_outcome(1, outcomes_of({{1, {{Mark::revoked, 1}, false, false}}}),
                                       {Code::timeout, "rank 1 has not read"});
  EXPECT_EQ(outcome.status.code, Code::timeout);
  EXPECT_THAT(outcome.readers, ElementsAre(std::pair(1, ReaderOutcome::failed)));
}

}  // namespace
}  // namespace tensorbus::bus
