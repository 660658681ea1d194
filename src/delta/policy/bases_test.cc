#include "delta/policy/bases.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "tensorbus/status.h"

namespace tensorbus::delta {
namespace {

constexpr std::int64_t elements = 100;
constexpr std::size_t roomy = 1 << 20;

Changes changes_at(std::initializer_list<std::int64_t> places) {
  Changes changes = {Bitmap(elements)};
  for (const std::int64_t place : places) changes[0].set(place);
  return changes;
}

TEST(Bases, ALaggardGetsWhatHasChangedSinceItsVersion) {
  Bases bases({elements}, roomy);
  bases.hold(1, std::nullopt);
  bases.publish_uncompared(1);
  bases.hold(1, 1);
  bases.hold(2, 1);
  bases.publish(2, changes_at({3}));
  bases.hold(2, 2);
  bases.publish(3, changes_at({5}));
  EXPECT_EQ(*bases.since(1)->changes, changes_at({3, 5}));
  EXPECT_EQ(*bases.since(2)->changes, changes_at({5}));
  EXPECT_EQ(*bases.since(3)->changes, changes_at({}));
  bases.hold(1, 3);
  EXPECT_EQ(bases.since(1), std::nullopt) << "nobody holds it any more";
  EXPECT_EQ(bases.kept(), 2U);
}

TEST(Bases, WhatNobodyComparedHasNoBase) {
  Bases bases({elements}, roomy);
  bases.hold(1, std::nullopt);
  bases.publish_uncompared(1);
  bases.hold(1, 1);
  bases.publish_uncompared(2);
  EXPECT_EQ(bases.since(1), std::nullopt);
  EXPECT_EQ(bases.since(2)->base, 2);
}

TEST(Bases, AVersionThatIsBeingPulledStaysABase) {
  Bases bases({elements}, roomy);
  bases.expect(1, 1);
  bases.publish_uncompared(1);
  bases.publish(2, changes_at({3}));
  EXPECT_EQ(bases.since(1)->base, 1);
  bases.hold(1, 1);
  EXPECT_EQ(*bases.since(1)->changes, changes_at({3}));
  bases.leave(1);
  EXPECT_EQ(bases.bytes(), 0U);
}

TEST(Bases, WithoutRoomTheDensestGoesFirst) {
  Bases bases({elements}, 2 * Bitmap::bytes_for(elements));
  for (const Bases::Reader reader : {1, 2, 3}) bases.expect(reader, 1);
  bases.publish_uncompared(1);
  bases.hold(1, 1);
  bases.publish(2, changes_at({1}));
  bases.hold(2, 2);
  bases.publish(3, changes_at({2}));
  EXPECT_EQ(bases.since(1), std::nullopt);
  EXPECT_EQ(bases.since(2)->base, 2);
  EXPECT_EQ(bases.dropped_for_room(), 1);
}

TEST(Bases, VersionsThatDoNotRiseAreRefused) {
  Bases bases({elements}, roomy);
  bases.publish_uncompared(5);
  EXPECT_THROW(bases.publish(5, changes_at({})), Error);
}

TEST(Bases, WithoutReadersNothingIsKept) {
  Bases bases({elements}, roomy);
  EXPECT_FALSE(bases.wanted());
  bases.publish_uncompared(1);
  EXPECT_EQ(bases.bytes(), 0U);
  bases.hold(1, std::nullopt);
  EXPECT_TRUE(bases.wanted());
  EXPECT_EQ(bases.since(1), std::nullopt) << "it is too late for this version";
}

// Versions as they are, beside what the bases say of them.
class History {
 public:
  History(unsigned seed, std::size_t most_bitmaps)
      : random_(seed),
        most_bytes_(most_bitmaps * Bitmap::bytes_for(elements)),
        bases_({elements}, most_bytes_) {}

  void step() {
    const Bases::Reader reader = random_() % 4;
    switch (random_() % 5) {
      case 0:
      case 1:
        return publish();
      case 2:
        return bases_.expect(reader, newest());
      case 3:
        return bases_.hold(reader, random_() % 8 == 0 ? std::optional<std::int64_t>{} : newest());
      default:
        if (random_() % 4 == 0) bases_.leave(reader);
    }
  }

  // Whatever differs from a base is in its bitmap, and there is never more than may be.
  void check() const {
    ASSERT_LE(bases_.bytes(), most_bytes_);
    for (const auto& [version, content] : contents_) {
      const std::optional<Bases::Since> since = bases_.since(version);
      if (!since) continue;
      ASSERT_LE(since->base, version);
      for (std::int64_t i = 0; i < elements; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (content[at] == contents_.rbegin()->second[at]) continue;
        ASSERT_TRUE(since->changes->front().test(i)) << "element " << i << " of " << version;
      }
    }
  }

 private:
  std::int64_t newest() const { return contents_.empty() ? 0 : contents_.rbegin()->first; }

  void publish() {
    std::vector<unsigned> content =
        contents_.empty() ? std::vector<unsigned>(elements) : contents_.rbegin()->second;
    Changes changes = {Bitmap(elements)};
    for (std::uint64_t left = random_() % 5; left > 0; --left) {
      const std::size_t at = random_() % elements;
      const auto value =
          static_cast<unsigned>(random_() % 3);  // also as it was, or as it was before
      if (content[at] != value) changes[0].set(static_cast<std::int64_t>(at));
      content[at] = value;
    }
    const std::int64_t version = newest() + 1 + static_cast<std::int64_t>(random_() % 2);
    const bool compared = bases_.wanted() && !contents_.empty() && random_() % 10 > 0;
    contents_[version] = content;
    compared ? bases_.publish(version, changes) : bases_.publish_uncompared(version);
  }

  std::mt19937 random_;
  const std::size_t most_bytes_;
  Bases bases_;
  std::map<std::int64_t, std::vector<unsigned>> contents_;
};

TEST(Bases, InRandomHistoriesNoChangeIsEverMissing) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    History history(seed, seed % 4);
    for (int step = 0; step < 60; ++step) {
      history.step();
      history.check();
      if (HasFatalFailure()) FAIL() << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace tensorbus::delta
