#include "delta/policy/decision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

namespace tensorbus::delta {
namespace {

constexpr double gigabit = 1e9 / 8;

// About what the codec makes of uniform changes in bfloat16.
Offered offered(double share) {
  constexpr std::int64_t dense = std::int64_t{1} << 30;
  const double bytes = share < 0.1 ? 1.6 * share : share + 0.07;
  return {dense, static_cast<std::int64_t>(bytes * static_cast<double>(dense)), share};
}

Speeds over(double link_rate) {
  Speeds speeds;
  speeds.link_rate = link_rate;
  return speeds;
}

TEST(Decision, AThinLinkGetsPatchesUpToHalfOfAllValues) {
  for (const double share : {0.0, 0.0001, 0.01, 0.1, 0.5}) {
    EXPECT_EQ(decide(Mode::automatic, offered(share), over(gigabit), {}), Why::patch) << share;
  }
  EXPECT_EQ(decide(Mode::automatic, offered(0.95), over(gigabit), {}), Why::too_large);
}

TEST(Decision, OnOneHostOnlyVeryFewChangesMakeAPatch) {
  const Speeds here;
  EXPECT_EQ(decide(Mode::automatic, offered(0.0005), here, {}), Why::patch);
  for (const double share : {0.01, 0.03, 0.1, 0.5}) {
    EXPECT_EQ(decide(Mode::automatic, offered(share), here, {}), Why::dense_is_sooner) << share;
  }
}

// proves: E1.6
TEST(Decision, ItIsNeverMuchSlowerThanDense) {
  const std::optional<Why> lasts[] = {std::nullopt, Why::patch, Why::too_large};
  for (double rate = gigabit; rate < 1e12; rate *= 1.7) {
    for (double share = 1e-5; share < 1; share *= 1.5) {
      for (const std::optional<Why>& last : lasts) {
        const Offered each = offered(share);
        if (decide(Mode::automatic, each, over(rate), last) != Why::patch) continue;
        EXPECT_LE(patch_seconds(each, over(rate)), dense_seconds(each, over(rate)));
      }
    }
  }
}

// proves: E1.6
TEST(Decision, NearTheBorderItStaysAsItWas) {
  const Offered each = offered(0.01);
  const auto after = [&](double rate, Why last) {
    return decide(Mode::automatic, each, over(rate), last);
  };
  // The rate at which both take the same time.
  double rate = gigabit;
  while (patch_seconds(each, over(rate)) < dense_seconds(each, over(rate))) rate *= 1.001;
  EXPECT_EQ(after(rate * 0.98, Why::patch), Why::patch);
  EXPECT_EQ(after(rate * 0.98, Why::dense_is_sooner), Why::dense_is_sooner);
  EXPECT_EQ(after(rate * 1.01, Why::patch), Why::dense_is_sooner);
  EXPECT_EQ(after(rate * 0.8, Why::dense_is_sooner), Why::patch);
}

TEST(Decision, WhatWasMeasuredCounts) {
  Speeds slow_kernels = over(2 * gigabit);
  EXPECT_EQ(decide(Mode::automatic, offered(0.03), slow_kernels, {}), Why::patch);
  slow_kernels.apply = 100;
  EXPECT_EQ(decide(Mode::automatic, offered(0.03), slow_kernels, {}), Why::dense_is_sooner);
  Speeds slow_reads;
  slow_reads.dense = 10;
  EXPECT_EQ(decide(Mode::automatic, offered(0.03), slow_reads, {}), Why::patch);
  EXPECT_EQ(learnt({}, 3), 3);
  EXPECT_GT(learnt(3, 7), 3);
  EXPECT_LT(learnt(3, 7), 7);
}

TEST(Decision, OffAndAlwaysAskNothing) {
  EXPECT_EQ(decide(Mode::off, offered(0), over(gigabit), Why::patch), Why::switched_off);
  EXPECT_EQ(decide(Mode::always, offered(1), {}, {}), Why::patch);
}

TEST(Decision, CostsRiseWithTheShare) {
  double pack = 0;
  double apply = 0;
  for (const double share : {0.0, 1e-5, 1e-4, 5e-4, 1e-3, 0.005, 0.01, 0.1, 0.4, 1.0, 2.0}) {
    EXPECT_GE(pack_cost(share), pack) << share;
    EXPECT_GE(apply_cost(share), apply) << share;
    pack = pack_cost(share);
    apply = apply_cost(share);
  }
}

std::string looks(Attention attention, int versions, bool paid) {
  std::string seen;
  for (int i = 0; i < versions; ++i) {
    seen += attention.compares() ? 'c' : '.';
    attention.compares() ? attention.learn(paid) : attention.pass();
  }
  return seen;
}

TEST(Attention, WhatChangesEverywhereIsTriedAgainRarely) {
  const std::string expected =
      "ccc" + std::string(16, '.') + "c" + std::string(32, '.') + "c" + std::string(64, '.') + "c";
  EXPECT_EQ(looks({}, static_cast<int>(expected.size()), false), expected);
  const std::string late = looks({}, 10'000, false).substr(5000);
  EXPECT_EQ(std::ranges::count(late, 'c'), 5);
}

TEST(Attention, OnePatchThatPaysBringsItBack) {
  EXPECT_EQ(looks({}, 50, true), std::string(50, 'c'));
  Attention attention;
  for (int i = 0; i < 3; ++i) attention.learn(false);
  while (!attention.compares()) attention.pass();
  attention.learn(true);
  EXPECT_EQ(looks(attention, 4, false), "ccc.");
}

}  // namespace
}  // namespace tensorbus::delta
