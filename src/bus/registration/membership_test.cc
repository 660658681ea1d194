#include "bus/registration/membership.h"

#include <gtest/gtest.h>

namespace tensorbus::bus {
namespace {

Membership after(std::initializer_list<MembershipEvent> events) {
  Membership now;
  for (const MembershipEvent& event : events) now = next(now, event).value();
  return now;
}

TEST(MembershipTest, ARecordIsShownOnce) {
  const Membership shown = after({Announced{}});
  EXPECT_EQ(shown.presence, Presence::shown);
  EXPECT_FALSE(next(shown, Announced{}));
}

TEST(MembershipTest, NobodySendsBeforeTheOthersSeeIt) {
  EXPECT_FALSE(next(Membership{}, GenerationBegun{}));
  EXPECT_TRUE(after({Announced{}, GenerationBegun{}}).sending);
}

TEST(MembershipTest, ARegistrationIsInOneGeneration) {
  EXPECT_FALSE(next(after({Announced{}, GenerationBegun{}}), GenerationBegun{}));
  EXPECT_FALSE(next(after({Announced{}, GenerationEnded{0}}), GenerationBegun{}));
}

TEST(MembershipTest, RoundsUpToTheEndGoOn) {
  Membership now = after({Announced{}, GenerationBegun{}, SendAccepted{}, GenerationEnded{2}});
  EXPECT_FALSE(now.stale());
  EXPECT_FALSE(next(now, SendsOver{}));
  now = next(now, SendAccepted{}).value();
  EXPECT_EQ(now.last_round, 2);
  EXPECT_TRUE(now.stale());
  EXPECT_FALSE(next(now, SendAccepted{}));
  EXPECT_FALSE(next(now, SendsOver{}).value().sending);
}

TEST(MembershipTest, OfSeveralEndsTheEarliestCounts) {
  const Membership ended = after({Announced{}, GenerationBegun{}, GenerationEnded{3}});
  EXPECT_FALSE(next(ended, GenerationEnded{3}));
  EXPECT_FALSE(next(ended, GenerationEnded{4}));
  EXPECT_EQ(next(ended, GenerationEnded{0}).value().ends_after, 0);
}

TEST(MembershipTest, ASenderThatClosesTellsAfterWhichRound) {
  const Membership sending = after({Announced{}, GenerationBegun{}, SendAccepted{}});
  const Membership leaving = next(sending, Closed{1}).value();
  EXPECT_EQ(leaving.presence, Presence::leaving);
  EXPECT_EQ(leaving.leaves_after, 1);
  EXPECT_TRUE(leaving.closing());
  EXPECT_EQ(next(leaving, Told{}).value().presence, Presence::gone);
}

TEST(MembershipTest, WhoeverHasNoRoundsOrNoWorkerLeavesAtOnce) {
  EXPECT_EQ(after({Closed{0}}).presence, Presence::gone);
  EXPECT_EQ(after({Announced{}, Closed{0}}).presence, Presence::gone);
  const Membership sending = after({Announced{}, GenerationBegun{}});
  EXPECT_EQ(next(sending, Closed{std::nullopt}).value().presence, Presence::gone);
}

TEST(MembershipTest, NothingFollowsAClose) {
  const Membership gone = after({Announced{}, Closed{0}});
  EXPECT_FALSE(next(gone, Announced{}));
  EXPECT_FALSE(next(gone, GenerationBegun{}));
  EXPECT_FALSE(next(gone, GenerationEnded{0}));
  EXPECT_FALSE(next(gone, SendAccepted{}));
  EXPECT_FALSE(next(gone, Closed{0}));
  EXPECT_FALSE(next(gone, Told{}));
}

const Membership shown_member = after({Announced{}});
const Membership sending_member = after({Announced{}, GenerationBegun{}});
const RecordSight names_us{.exists = true, .has_us = true, .as_we_are = true, .is_of_group = true};

TEST(SenderMoveTest, TheFirstGenerationIsProposedWhenAllAreThere) {
  EXPECT_EQ(move_of(shown_member, {}), SenderMove::wait);
  EXPECT_EQ(move_of(shown_member, {.group_is_new = true}), SenderMove::propose);
}

TEST(SenderMoveTest, ASenderServesInTheGenerationThatNamesIt) {
  EXPECT_EQ(move_of(shown_member, names_us), SenderMove::begin);
  EXPECT_EQ(move_of(sending_member, names_us), SenderMove::wait);
  RecordSight others = names_us;
  others.is_of_group = false;
  EXPECT_EQ(move_of(shown_member, others), SenderMove::wait);
}

TEST(SenderMoveTest, AnEndIsFollowed) {
  RecordSight ended = names_us;
  ended.ended = true;
  EXPECT_EQ(move_of(sending_member, ended), SenderMove::end);
  EXPECT_EQ(move_of(shown_member, ended), SenderMove::end_unseen);
  ended.after = 2;
  EXPECT_EQ(move_of(sending_member, ended), SenderMove::end);
  EXPECT_EQ(move_of(shown_member, ended), SenderMove::begin_and_end);
  ended.as_we_are = false;
  EXPECT_EQ(move_of(shown_member, ended), SenderMove::end_unseen);
}

TEST(SenderMoveTest, WhoeverSeesALossWritesIt) {
  RecordSight lost = names_us;
  lost.left = 3;
  EXPECT_EQ(move_of(sending_member, lost), SenderMove::end_for_lost);
  EXPECT_EQ(move_of(shown_member, lost), SenderMove::end_for_lost);
  lost.has_us = false;
  EXPECT_EQ(move_of(shown_member, lost), SenderMove::report_lost);
  lost.left.reset();
  EXPECT_EQ(move_of(shown_member, lost), SenderMove::wait);
}

TEST(SenderMoveTest, ARankThatWasTakenForDeadEndsItself) {
  RecordSight dead = names_us;
  dead.as_we_are = false;
  EXPECT_EQ(move_of(sending_member, dead), SenderMove::end_as_dead);
}

TEST(SenderMoveTest, TheNextGenerationWaitsUntilAllHaveRegisteredAgain) {
  RecordSight last{.exists = true, .ended = true};
  EXPECT_EQ(move_of(shown_member, last), SenderMove::wait);
  last.group_is_new = true;
  EXPECT_EQ(move_of(shown_member, last), SenderMove::propose);
}

}  // namespace
}  // namespace tensorbus::bus
