#include "bus/shelf/agreement.h"

#include <gtest/gtest.h>

namespace tensorbus::bus {
namespace {

class AgreementTest : public testing::Test {
 protected:
  using Member = Agreement::Member;
  using Numbers = std::vector<std::int64_t>;

  AgreementTest() { agreement.set_members({first, second}); }

  void propose(const Member& member, Numbers versions, std::int64_t generation = 1,
               bool anew = false) {
    Propose wish;
    wish.at = seen.number;
    wish.versions = std::move(versions);
    agreement.propose(member, generation, wish, anew);
  }
  void ask(const Member& member, std::optional<std::int64_t> version, std::int64_t above) {
    Propose wish;
    wish.version = version;
    wish.above = above;
    agreement.propose(member, 1, wish, true);
  }
  void pin(const Member& member, std::int64_t version, Numbers versions) {
    Propose wish;
    wish.at = seen.number;
    wish.versions = std::move(versions);
    wish.pinned = version;
    agreement.propose(member, 1, wish, false);
  }
  // What is chosen next; a number of 0 if nothing is.
  Choose chosen() {
    const auto told = agreement.next();
    if (told) seen = std::get<Choose>(told->body);
    return told ? seen : Choose{};
  }
  void begin(Numbers of_first, Numbers of_second) {
    propose(first, std::move(of_first), 1, true);
    propose(second, std::move(of_second), 1, true);
  }
  void vote(const Member& member, bool read) { agreement.vote(member, {seen.number, read}); }

  const Member first{10, 100};
  const Member second{11, 110};
  Agreement agreement{"engine"};
  Choose seen;
};

// proves: L1.4
TEST_F(AgreementTest, TheNewestThatAllCouldHaveIsChosenAndDecidedWhenAllHaveReadIt) {
  begin({4, 5, 6}, {3, 4, 5});
  EXPECT_EQ(chosen().version, 5);
  vote(first, true);
  EXPECT_FALSE(agreement.next());
  EXPECT_EQ(agreement.waits(), (Waits{{}, {11}}));
  vote(second, true);
  const auto decided = agreement.next();
  ASSERT_TRUE(decided);
  EXPECT_EQ(decided->generation, 1);
  EXPECT_EQ(std::get<Decide>(decided->body), (Decide{seen.number, 5}));
  EXPECT_EQ(agreement.waits(), (Waits{{10, 11}, {}})) << "the next pull begins with nobody";
}

TEST_F(AgreementTest, NothingIsChosenBeforeAllHavePulled) {
  propose(first, {1, 2}, 1, true);
  EXPECT_FALSE(agreement.next());
  EXPECT_EQ(agreement.waits(), (Waits{{11}, {}}));
  propose({11, 111}, {1, 2}, 1, true);
  EXPECT_FALSE(agreement.next()) << "an unknown registration";
  agreement.set_members({first, {11, 111}});
  EXPECT_EQ(chosen().version, 2);
}

// proves: L1.4
TEST_F(AgreementTest, WhatOneRankCouldNotReadIsChosenAnewAmongWhatAllKeep) {
  begin({5}, {5});
  EXPECT_EQ(chosen().version, 5);
  vote(first, true);
  vote(second, false);
  EXPECT_TRUE(chosen().pin);
  const std::int64_t asked = seen.number;
  pin(first, 7, {6});
  EXPECT_FALSE(agreement.next()) << "the other has not pinned";
  pin(second, 6, {6});
  EXPECT_EQ(chosen(), (Choose{asked + 1, 6, 7, false})) << "6 can be read, 7 is kept";
  vote(second, false);
  EXPECT_TRUE(chosen().pin);
  pin(first, 7, {7, 8});
  pin(second, 7, {7, 8});
  EXPECT_EQ(chosen().version, 7) << "what all keep comes before what is newer";
}

TEST_F(AgreementTest, WhatIsPinnedAndStillToComeIsKeptAlone) {
  begin({}, {});
  Propose more;
  more.more = true;
  agreement.propose(first, 1, more, false);
  EXPECT_TRUE(chosen().pin);
  pin(first, 3, {});
  pin(second, 2, {});
  EXPECT_EQ(chosen(), (Choose{2, 0, 3, false}));
  propose(first, {3});
  EXPECT_FALSE(agreement.next());
  propose(second, {3});
  EXPECT_EQ(chosen().version, 3);
}

// proves: L1.4
TEST_F(AgreementTest, RanksThatFollowDifferentGenerationsHaveNothingInCommon) {
  propose(first, {3}, 1, true);
  propose(second, {3}, 2, true);
  EXPECT_FALSE(agreement.next());
  propose(first, {}, 0);
  EXPECT_FALSE(agreement.next());
  propose(first, {3}, 2);
  const auto told = agreement.next();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->generation, 2);
}

TEST_F(AgreementTest, WhoLeavesOrPullsAnewMakesTheChoiceVoid) {
  begin({1}, {1});
  EXPECT_EQ(chosen().version, 1);
  const std::int64_t before = seen.number;
  vote(first, true);
  agreement.remove(second);
  EXPECT_EQ(chosen(), (Choose{before + 1, 0, 0, false}));
  propose(second, {1}, 1, true);
  EXPECT_EQ(chosen().version, 1);
  agreement.vote(second, {before, true});
  vote(first, true);
  EXPECT_FALSE(agreement.next()) << "a vote for what was chosen before";
  propose(second, {1}, 1, true);
  EXPECT_EQ(chosen().version, 0) << "it is another pull";
  EXPECT_EQ(chosen().version, 1);
}

// proves: L1.4
TEST_F(AgreementTest, WishesThatExcludeEachOtherEndThePull) {
  const auto refusal = [&](std::optional<std::int64_t> version, std::int64_t above) {
    ask(first, 3, 0);
    ask(second, version, above);
    const auto told = agreement.next();
    if (!told || !std::holds_alternative<GiveUp>(told->body)) return std::string();
    return std::get<GiveUp>(told->body).status.message;
  };
  EXPECT_NE(refusal(4, 0).find("rank 10 for version 3, rank 11 for version 4"), std::string::npos);
  EXPECT_NE(refusal(std::nullopt, 3).find("rank 11 for one above 3"), std::string::npos);
  EXPECT_EQ(refusal(std::nullopt, 2), "");
  EXPECT_EQ(refusal(3, 0), "");
}

// proves: L1.3 L1.4
TEST_F(AgreementTest, AVersionThatOneRankCannotHaveAnyMoreEndsThePullAtOnce) {
  const auto absence = [&](std::vector<std::int64_t> has_first,
                           std::vector<std::int64_t> has_second) {
    Propose named;
    named.version = 3;
    named.versions = std::move(has_first);
    Propose any;
    any.versions = std::move(has_second);
    agreement.propose(first, 1, named, true);
    agreement.propose(second, 1, any, true);
    const auto told = agreement.next();
    if (!told || !std::holds_alternative<GiveUp>(told->body)) return Absence::none;
    return std::get<GiveUp>(told->body).absence;
  };
  EXPECT_EQ(absence({3}, {4, 5}), Absence::gone);
  EXPECT_EQ(absence({}, {4}), Absence::gone);
  EXPECT_EQ(absence({3}, {2}), Absence::none) << "it may come";
  EXPECT_EQ(absence({}, {3, 4}), Absence::none) << "only the first rank knows whether it has it";
  EXPECT_EQ(absence({3}, {}), Absence::none);
}

TEST_F(AgreementTest, WhoLeadsNoMoreChoosesNothing) {
  begin({1}, {1});
  agreement.set_members({});
  EXPECT_FALSE(agreement.next());
}

}  // namespace
}  // namespace tensorbus::bus
