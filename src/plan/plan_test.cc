#include "tensorbus/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/testing/refusal.h"
#include "plan/testing/random_case.h"
#include "tensorbus/status.h"

namespace tensorbus::plan {
namespace {

using testing::HasSubstr;

Plan plan_of(const char* source, const char* target, Shape shape, const Hosts& hosts = {}) {
  return make(parse_layout(source), parse_layout(target), std::move(shape), float32, hosts);
}

Plan random_plan(RandomCase& random) {
  const Shape shape = random.shape();
  const Layout source = random.layout(shape.size(), true);
  const Layout target = random.layout(shape.size(), false);
  return make(source, target, shape, float32, random.hosts(source, target));
}

std::string to_text(const Plan& plan) {
  return to_string(plan.source()) + " -> " + to_string(plan.target()) + " " +
         to_string(plan.shape());
}

// The global index along one dimension of each local one.
std::vector<std::int64_t> indices(const Intervals& intervals) {
  std::vector<std::int64_t> all;
  for (const Interval& interval : intervals) {
    for (std::int64_t i = interval.begin; i < interval.end; ++i) all.push_back(i);
  }
  return all;
}

// How often each element of the target's local tensor is written. Checks that source and target
// mean the same element of the global tensor.
std::vector<int> writes(const Plan& plan, Rank target, const std::vector<Piece>& pieces) {
  const Holding wanted = plan.target().holding(plan.shape(), target);
  const Shape local = wanted.local_shape();
  std::vector<int> count(static_cast<std::size_t>(element_count(local)), 0);
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.target, target);
    EXPECT_GT(piece.elements(), 0);
    std::vector<std::size_t> places = {0};
    for (std::size_t dim = 0; dim < local.size(); ++dim) {
      std::vector<std::size_t> next;
      const auto to = indices(wanted.dims[dim]);
      for (const Rank rank : piece.source.ranks) {
        const auto from = indices(plan.source().holding(plan.shape(), rank).dims[dim]);
        for (const Span& span : piece.dims[dim]) {
          for (std::int64_t i = 0; i < span.length; ++i) {
            EXPECT_EQ(from[static_cast<std::size_t>(span.source + i)],
                      to[static_cast<std::size_t>(span.target + i)]);
          }
        }
      }
      for (const std::size_t place : places) {
        for (const Span& span : piece.dims[dim]) {
          for (std::int64_t i = 0; i < span.length; ++i) {
            next.push_back(place * static_cast<std::size_t>(local[dim]) +
                           static_cast<std::size_t>(span.target + i));
          }
        }
      }
      places = std::move(next);
    }
    for (const std::size_t place : places) ++count[place];
  }
  return count;
}

// proves: B4.5
TEST(Plan, TwoShardsToThree) {
  const Plan plan = plan_of("2:S0", "3:S0", {6});
  EXPECT_EQ(plan.reads(0), (std::vector<Piece>{{0, {{0}, {}}, {{{0, 0, 2}}}}}));
  EXPECT_EQ(plan.reads(1),
            (std::vector<Piece>{{1, {{0}, {}}, {{{2, 0, 1}}}}, {1, {{1}, {}}, {{{0, 1, 1}}}}}));
  EXPECT_EQ(plan.reads(2), (std::vector<Piece>{{2, {{1}, {}}, {{{1, 0, 2}}}}}));
}

// proves: B4.5
TEST(Plan, UnevenAndEmptyTargets) {
  const Plan uneven = plan_of("1:R", "2:S0", {7});
  EXPECT_EQ(uneven.reads(0).front().dims.front(), (Spans{{0, 0, 4}}));
  EXPECT_EQ(uneven.reads(1).front().dims.front(), (Spans{{4, 0, 3}}));
  const Plan empty = plan_of("1:R", "4:S0", {2});
  EXPECT_EQ(empty.reads(1).front().dims.front(), (Spans{{1, 0, 1}}));
  EXPECT_TRUE(empty.reads(2).empty());
  EXPECT_TRUE(empty.reads(3).empty());
}

// proves: B4.4, B4.5
TEST(Plan, ReplicatedHalvesAreEachServedBySomeone) {
  const Plan plan = plan_of("2x2:R,S0", "2:R", {8});
  std::set<Rank> serving;
  for (const Rank target : {0, 1}) {
    const auto pieces = plan.reads(target);
    ASSERT_EQ(pieces.size(), 2U);
    for (const Piece& piece : pieces) serving.insert(piece.source.ranks.front());
  }
  EXPECT_EQ(serving, (std::set<Rank>{0, 1, 2, 3}));
}

// proves: B4.1
TEST(Plan, EveryTargetElementIsWrittenOnceFromWhereItLies) {
  RandomCase random(11);
  for (int round = 0; round < 400; ++round) {
    const Plan plan = random_plan(random);
    SCOPED_TRACE(to_text(plan));
    for (const Rank rank : plan.target().mesh().ranks()) {
      EXPECT_THAT(writes(plan, rank, plan.reads(rank)), testing::Each(1));
    }
  }
}

TEST(Plan, WhatIsReadIsWhatIsServed) {
  RandomCase random(12);
  for (int round = 0; round < 400; ++round) {
    const Plan plan = random_plan(random);
    SCOPED_TRACE(to_text(plan));
    std::map<Rank, std::vector<Piece>> expected;
    for (const Rank rank : plan.target().mesh().ranks()) {
      for (const Piece& piece : plan.reads(rank)) {
        for (const Rank member : piece.source.ranks) expected[member].push_back(piece);
      }
    }
    for (const Rank rank : plan.source().mesh().ranks())
      EXPECT_EQ(plan.serves(rank), expected[rank]);
  }
}

// proves: B4.4
TEST(Plan, ReplicasShareReadersEvenlyAndNearOnesComeFirst) {
  RandomCase random(13);
  int shared = 0;
  for (int round = 0; round < 400; ++round) {
    const Shape shape = random.shape();
    const Layout source = random.layout(shape.size(), false);
    const Layout target = random.layout(shape.size(), false);
    const Hosts hosts = random.hosts(source, target);
    const Plan plan = make(source, target, shape, float32, hosts);
    SCOPED_TRACE(to_text(plan));

    std::map<std::vector<Rank>, std::map<Rank, int>> served;  // by candidates
    for (const Rank reader : target.mesh().ranks()) {
      for (const Piece& piece : plan.reads(reader)) {
        const Rank chosen = piece.source.ranks.front();
        const Holding holding = source.holding(shape, chosen);
        std::vector<Rank> all;
        std::vector<Rank> near;
        for (const Rank other : source.mesh().ranks()) {
          if (source.holding(shape, other) != holding) continue;
          all.push_back(other);
          if (!hosts.source.empty() && hosts.source[source.mesh().index_of(other)] ==
                                           hosts.target[target.mesh().index_of(reader)]) {
            near.push_back(other);
          }
        }
        const std::vector<Rank>& candidates = near.empty() ? all : near;
        ASSERT_THAT(candidates, testing::Contains(chosen));
        ++served[candidates][chosen];
      }
    }
    for (const auto& [candidates, counts] : served) {
      int total = 0;
      int most = 0;
      for (const auto& [rank, count] : counts) {
        total += count;
        most = std::max(most, count);
      }
      const int ranks = static_cast<int>(candidates.size());
      EXPECT_LE(most, (total + ranks - 1) / ranks);
      if (ranks > 1 && total > 1) ++shared;
    }
  }
  EXPECT_GT(shared, 50);
}

// proves: B4.2
TEST(Plan, ReductionsFoldInTheOrderThatTorchUses) {
  // Not sharded: the first mesh dimension is reduced first.
  const auto plain = plan_of("2x3:P,P", "1:R", {4}).reads(0);
  EXPECT_EQ(plain.front().source.ranks, (std::vector<Rank>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(plain.front().source.folds,
            (std::vector<Fold>{{ReduceOp::sum, 2}, {ReduceOp::sum, 3}}));
  // Sharded: the last one first.
  const auto sharded = plan_of("2x2x2:P.avg,S0,P", "1:R", {4}).reads(0);
  ASSERT_EQ(sharded.size(), 2U);
  EXPECT_EQ(sharded[0].source.ranks, (std::vector<Rank>{0, 1, 4, 5}));
  EXPECT_EQ(sharded[1].source.ranks, (std::vector<Rank>{2, 3, 6, 7}));
  EXPECT_EQ(sharded[0].source.folds, (std::vector<Fold>{{ReduceOp::sum, 2}, {ReduceOp::avg, 2}}));
  // Groups are replicas of each other too.
  const Plan replicated = plan_of("2x2:R,P.max", "2:R", {4});
  EXPECT_EQ(replicated.reads(0).front().source.ranks, (std::vector<Rank>{0, 1}));
  EXPECT_EQ(replicated.reads(1).front().source.ranks, (std::vector<Rank>{2, 3}));
  // One value needs no reduction.
  EXPECT_FALSE(plan_of("1x2:P,S0", "1:R", {4}).reads(0).front().source.reduces());
}

TEST(Plan, AReductionSpreadOverHostsIsOnNone) {
  const Hosts hosts{{"a", "b", "b", "b"}, {"a", "b"}};
  const Plan plan = plan_of("2x2:R,P", "2:R", {4}, hosts);
  EXPECT_EQ(plan.reads(0).front().source.ranks, (std::vector<Rank>{0, 1}));
  EXPECT_EQ(plan.reads(1).front().source.ranks, (std::vector<Rank>{2, 3}));
}

// proves: B4.3
TEST(Plan, TheNarrowerTypeCrossesTheWire) {
  const Layout one = parse_layout("1:R");
  const auto wire = [&](Dtype source, Dtype target) {
    return make(one, one, {4}, {source, target}).wire_dtype();
  };
  EXPECT_EQ(wire(Dtype::float32, Dtype::bfloat16), Dtype::bfloat16);
  EXPECT_EQ(wire(Dtype::bfloat16, Dtype::float32), Dtype::bfloat16);
  EXPECT_EQ(wire(Dtype::bfloat16, Dtype::float16), Dtype::bfloat16);
  const Plan reduction = make(parse_layout("2:P"), one, {4}, {Dtype::float32, Dtype::bfloat16});
  EXPECT_EQ(reduction.wire_dtype(), Dtype::float32);
}

TEST(Plan, TwoToTheFortyElementsDoNotOverflow) {
  const std::int64_t edge = std::int64_t{1} << 20;
  const Plan plan = plan_of("4x2:S0,S1", "8:S1", {edge, edge});
  std::int64_t total = 0;
  for (const Piece& piece : plan.reads(7)) total += piece.elements();
  EXPECT_EQ(total, edge * edge / 8);
}

// proves: B4.2, B4.3
TEST(Plan, BadInputIsRefusedSayingWhatWasExpected) {
  const auto refused = [](const char* source, const char* target, Types types,
                          const Hosts& hosts = {}) {
    return refusal([&] { make(parse_layout(source), parse_layout(target), {4}, types, hosts); });
  };
  EXPECT_THAT(refused("2:S0", "2:P", float32), HasSubstr("the target has a Partial placement"));
  EXPECT_THAT(refused("2:S0", "2:S1", float32), HasSubstr("target 2:S1: placement S1 shards"));
  EXPECT_THAT(refused("2:P", "2:P", float32), HasSubstr("both sides have a Partial placement"));
  EXPECT_THAT(refused("2:S1", "2:S0", float32), HasSubstr("S1 shards a dimension"));
  EXPECT_THAT(refused("2:P.avg", "2:R", {Dtype::int32, Dtype::float32}), HasSubstr("avg of int32"));
  EXPECT_THAT(refused("2:P", "2:R", {Dtype::bool_, Dtype::bool_}), HasSubstr("sum of bool"));
  EXPECT_THAT(refused("2:P", "2:R", {Dtype::complex64, Dtype::complex64}), HasSubstr("complex64"));
  EXPECT_THAT(refused("2:R", "2:R", {Dtype::complex64, Dtype::float32}),
              HasSubstr("complex64 does not convert to float32"));
  EXPECT_THAT(refused("2:R", "2:R", float32, {{"a"}, {"a", "b"}}),
              HasSubstr("1 hosts are given for the source's 2 ranks"));
  EXPECT_THAT(refusal([] { plan_of("2:R", "2:R", {4}).reads(5); }), HasSubstr("rank 5"));
}

}  // namespace
}  // namespace tensorbus::plan
