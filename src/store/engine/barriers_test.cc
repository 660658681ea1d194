#include "store/engine/barriers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorbus::store {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Barriers, TheLastOneReleasesAllAndTheNameIsFreeAgain) {
  Barriers barriers;
  for (int use = 0; use < 3; ++use) {
    EXPECT_THAT(barriers.arrive(1, "gate", 3, "0"), IsEmpty());
    EXPECT_THAT(barriers.arrive(2, "gate", 3, "1"), IsEmpty());
    EXPECT_THAT(barriers.arrive(3, "gate", 3, "2"), ElementsAre(1, 2, 3));
    EXPECT_EQ(barriers.size(), 0U);
  }
}

TEST(Barriers, WhoWithdrawsIsToldWhoIsMissing) {
  Barriers barriers;
  barriers.arrive(1, "/gate", 4, "3");
  barriers.arrive(2, "/gate", 4, "0");
  EXPECT_EQ(*barriers.withdraw(1), "barrier \"gate\": 2 of 4 arrived: 0, 3; missing: rank 1, 2");
  EXPECT_FALSE(barriers.withdraw(1));
  EXPECT_THAT(*barriers.withdraw(2), HasSubstr("1 of 4 arrived: 0"));
}

TEST(Barriers, MembersMustAgreeOnTheCount) {
  Barriers barriers;
  barriers.arrive(1, "gate", 3, "somebody");
  EXPECT_THROW(barriers.arrive(2, "gate", 2, "another"), Error);
  EXPECT_EQ(barriers.size(), 1U);
  // Names that are no ranks are listed, but nobody can say who is missing.
  EXPECT_THAT(*barriers.withdraw(1), testing::Not(HasSubstr("missing")));
}

TEST(Barriers, ManyMembersAreNotAllNamed) {
  Barriers barriers;
  for (Ticket ticket = 0; ticket < 100; ++ticket) {
    barriers.arrive(ticket, "gate", 1000, std::to_string(ticket));
  }
  const std::string text = *barriers.withdraw(5);
  EXPECT_THAT(text, HasSubstr("100 of 1000"));
  EXPECT_LT(text.size(), 300U);
}

// A count of 2^63, as a torch client may send it, costs nothing before so many came.
TEST(Barriers, AnAbsurdCountIsOnlyNeverReached) {
  Barriers barriers;
  barriers.arrive(1, "gate", std::size_t{1} << 63, "0");
  EXPECT_THAT(*barriers.withdraw(1), HasSubstr("1 of 9223372036854775808 arrived"));
}

}  // namespace
}  // namespace tensorbus::store
