// Records of links, matched: what parts, wholes and missing names come to.
#include "bus/match/match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "base/testing/refusal.h"
#include "bus/match/group_search.h"

namespace tensorbus::bus {
namespace {

using testing::HasSubstr;
using testing::Not;

// A tensor of one rank, as a link registers it.
TensorRecord plain(const std::string& name, Shape shape) {
  return {0, name, Dtype::float32, std::move(shape), std::nullopt};
}
TensorRecord box(const std::string& name, Shape shape, Shape whole, Shape start) {
  return {
      0, name, Dtype::float32, std::move(shape), std::move(whole), std::nullopt, std::move(start)};
}

using Tensors = std::map<Rank, std::vector<TensorRecord>>;

Group group_of(const std::string& name, const std::string& other, Direction direction,
               const Tensors& tensors, bool subset = false) {
  Group group;
  group.name = {"t", name};
  Side side{group.name, other, {}, {}, std::nullopt};
  for (const auto& [rank, own] : tensors) {
    BatchMember member;
    member.registration = static_cast<std::uint64_t>(rank) + 1;
    member.ends = {group.name};
    member.remotes = {other};
    member.tensors = own;
    member.versioned = Versioned{direction, 0, subset};
    group.members[rank] = std::make_shared<const BatchMember>(member);
    side.ranks.push_back(rank);
    side.hosts.push_back("host");
  }
  const auto count = static_cast<std::int64_t>(side.ranks.size());
  side.layout = Layout(Mesh({count}, side.ranks), {Replicate{}});
  group.sides.emplace(group.name, side);
  return group;
}

Group senders(const Tensors& tensors) { return group_of("t", "e", Direction::send, tensors); }
Group takers(const Tensors& tensors, bool subset = false) {
  return group_of("e", "t", Direction::recv, tensors, subset);
}

std::string problem(const Group& from, const Group& to) {
  return refusal([&] { check_tensors(from, to); });
}

// What a reader gets from whom: (source, source tensor, target tensor, elements).
using Reads = std::vector<std::tuple<Rank, std::size_t, std::size_t, std::int64_t>>;
Reads reads_of(const Group& from, const Group& to, Rank reader) {
  Reads reads;
  const Passage passage = make_passage(from, to, reader);
  for (const plan::Stream& stream : plan::read_streams(passage.plans, reader)) {
    for (const plan::Part& part : stream.parts) {
      reads.emplace_back(stream.source.ranks.front(), part.source_tensor, part.target_tensor,
                         part.elements);
    }
  }
  std::ranges::sort(reads);
  return reads;
}

// proves: L4.1
TEST(Match, AGroupWaitsForWhatItsRanksHaveRegistered) {
  const End end{"t", "t"};
  const std::vector<TensorRecord> tensors{plain("w", {4})};
  Catalog catalog;
  for (const Rank rank : {0, 1}) {
    PairMember place;
    place.world_size = 2;
    place.remote = "e";
    place.layout = SideLayout{{2}, {Replicate{}}, std::nullopt};
    catalog.apply({to_text(PairKey{end, rank}), encode(place)});
  }
  const auto enlist = [&](Rank rank) {
    BatchMember member;
    member.registration = static_cast<std::uint64_t>(rank) + 1;
    member.ends = {end};
    member.remotes = {"e"};
    member.tensors = tensors;
    catalog.apply({to_text(BatchKey{"b", "t", rank}), encode(member)});
  };
  GroupSearch search;
  enlist(0);
  EXPECT_TRUE(search.find(catalog, "b", {end}, {}).in_short);
  EXPECT_THAT(find_group(catalog, "b", {end}).missing, HasSubstr("rank 1 of side \"t\""));
  enlist(1);
  EXPECT_THAT(search.find(catalog, "b", {end}, {}).missing,
              HasSubstr("what rank 0, 1 of side \"t\" of pair \"t\" has registered is not in "
                        "the store yet"));
  const WrittenList list = write_list(tensors);
  catalog.apply({to_text(ListKey{list.id.hash, 0}), list.parts[0]});
  const GroupPtr found = search.find(catalog, "b", {end}, {}).group;
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->members.size(), 2u);
  // What has not changed is not made again.
  catalog.apply({to_text(BatchKey{"other", "t", 0}), std::nullopt});
  EXPECT_EQ(search.find(catalog, "b", {end}, {}).group, found);
  // And what is known stays when the store has lost it.
  catalog.apply({to_text(ListKey{list.id.hash, 0}), std::nullopt});
  EXPECT_EQ(search.find(catalog, "b", {end}, {}).group, found);
  catalog.apply({to_text(BatchKey{"b", "t", 1}), std::nullopt});
  EXPECT_EQ(search.find(catalog, "b", {end}, {}).group, nullptr);
}

// proves: L2.1, L2.3
TEST(Match, PartsAreReadFromWhoeverHoldsThem) {
  const Group from =
      senders({{0, {box("w", {4, 2}, {8, 2}, {0, 0})}}, {1, {box("w", {4, 2}, {8, 2}, {4, 0})}}});
  const Group to =
      takers({{5, {box("w", {2, 2}, {8, 2}, {3, 0}), box("w", {1, 1}, {8, 2}, {7, 1})}},
              {6, {plain("w", {8, 2})}}});
  check_tensors(from, to);
  check_tensors(to, from);
  EXPECT_EQ(reads_of(from, to, 5), (Reads{{0, 0, 0, 2}, {1, 0, 0, 2}, {1, 0, 1, 1}}));
  EXPECT_EQ(reads_of(from, to, 6), (Reads{{0, 0, 0, 8}, {1, 0, 0, 8}}));
  EXPECT_EQ(target_order(from, to, *to.members.at(5)), (ItemOrder{0, 1}));
  EXPECT_EQ(target_order(from, to, *to.members.at(6)), (ItemOrder{0, std::nullopt}));
  EXPECT_EQ(source_order(from, *from.members.at(0)), (ItemOrder{0}));
}

// proves: L2.5
TEST(Match, RanksMayHoldDifferentNames) {
  const Group from =
      senders({{0, {plain("a", {2}), plain("c", {3})}}, {1, {plain("b", {2}), plain("c", {3})}}});
  const Group to = takers({{5, {plain("b", {2})}}, {6, {plain("c", {3}), plain("a", {2})}}});
  check_tensors(from, to);
  EXPECT_EQ(reads_of(from, to, 5), (Reads{{1, 1, 1, 2}}));
  EXPECT_EQ(reads_of(from, to, 6).size(), 2U);
  EXPECT_EQ(reads_of(from, to, 6).front(), (Reads::value_type{0, 0, 0, 2}));
  EXPECT_EQ(source_order(from, *from.members.at(1)), (ItemOrder{std::nullopt, 0, 1}));
  EXPECT_EQ(target_order(from, to, *to.members.at(6)), (ItemOrder{1, std::nullopt, 0}));
}

// proves: L2.5
TEST(Match, WhatNobodyTakesIsAnErrorUnlessASubsetIsMeant) {
  const Group from = senders({{0, {plain("a", {2}), plain("b", {3})}}});
  EXPECT_THAT(problem(from, takers({{5, {plain("b", {3})}}})),
              HasSubstr("\"a\" is missing at \"e\""));
  const Group subset = takers({{5, {plain("b", {3})}}}, true);
  check_tensors(from, subset);
  EXPECT_EQ(reads_of(from, subset, 5), (Reads{{0, 1, 1, 3}}));
  EXPECT_EQ(target_order(from, subset, *subset.members.at(5)), (ItemOrder{std::nullopt, 0}));
  EXPECT_THAT(problem(from, takers({{5, {plain("c", {3})}}}, true)),
              HasSubstr("\"c\" is missing at \"t\""));
}

// proves: L2.3, L2.7
TEST(Match, WhatNobodyHoldsIsNamed) {
  const Group from = senders({{0, {box("w", {500, 4}, {512, 4}, {0, 0})}}});
  const std::string told = problem(from, takers({{5, {plain("w", {512, 4})}}}));
  EXPECT_THAT(told, HasSubstr("rows 500..511 of tensor \"w\""));
  EXPECT_THAT(told, HasSubstr("(512, 4), which rank 5 takes: nobody holds them"));
  check_tensors(from, takers({{5, {box("w", {12, 4}, {512, 4}, {488, 0})}}}));
}

// proves: L2.7
TEST(Match, WhatDoesNotFitIsToldLineByLine) {
  Tensors sent{{0, {}}};
  Tensors taken{{5, {plain("extra", {1})}}};
  for (int at = 0; at < 30; ++at) {
    sent[0].push_back(plain("n" + std::to_string(10 + at), {512, 2}));
    taken[5].push_back(plain("n" + std::to_string(10 + at), {256, 2}));
  }
  const std::string told = problem(senders(sent), takers(taken));
  EXPECT_EQ(std::ranges::count(told, '\n'), 21);
  EXPECT_THAT(told, HasSubstr("and 11 more"));
  EXPECT_THAT(told, HasSubstr("(512, 2) at \"t\" and (256, 2) at \"e\": a plain tensor is taken as "
                              "the whole; if one of them is a shard, pass tensorbus.Part"));
  EXPECT_LT(told.find("extra"), told.find("shape"));
}

// proves: L2.7
TEST(Match, FusedNamesAreRecognised) {
  const Group from =
      senders({{0, {plain("l.0.q_proj.weight", {2}), plain("l.0.k_proj.weight", {2})}}});
  const std::string told = problem(from, takers({{5, {plain("l.0.qkv_proj.weight", {4})}}}));
  EXPECT_THAT(told, HasSubstr("k_proj, q_proj missing and qkv_proj too much (of \"l.0.*.weight\"): "
                              "see tensorbus.fused"));
  EXPECT_THAT(problem(from, takers({{5, {plain("other", {4})}}})), Not(HasSubstr("fused")));
}

TEST(Match, RanksOfASideThatDisagreeAreTold) {
  EXPECT_TRUE(agrees(senders({{0, {plain("a", {2})}}, {1, {plain("b", {3})}}})));
  const Group wholes = senders({{0, {plain("a", {2})}}, {1, {box("a", {2}, {4}, {2})}}});
  EXPECT_FALSE(agrees(wholes));
  EXPECT_THAT(problem(wholes, takers({{5, {plain("a", {4})}}})),
              HasSubstr("rank 1 says that its whole shape is (4,), rank 0 says (2,)"));
}

// Both ends make the same plans, and know it.
TEST(Match, BothEndsComeToTheSamePlans) {
  const Tensors sent{{0, {box("w", {4}, {8}, {0}), plain("x", {2})}},
                     {1, {box("w", {4}, {8}, {4}), box("w", {2}, {8}, {0})}}};
  const Group from = senders(sent);
  const Group to = takers({{5, {box("w", {8}, {8}, {0})}}, {6, {plain("x", {2})}}});
  const Passage one = make_passage(from, to, 5);
  EXPECT_EQ(one.fingerprint, make_passage(senders(sent), to, 5).fingerprint);
  const Group moved = takers({{5, {box("w", {8}, {8}, {1})}}, {6, {plain("x", {2})}}});
  EXPECT_NE(one.fingerprint, make_passage(from, moved, 5).fingerprint);
  for (const Rank source : {0, 1}) {
    for (const plan::Stream& stream : plan::serve_streams(one.plans, source)) {
      EXPECT_THAT(plan::read_streams(make_passage(from, to, stream.reader).plans, stream.reader),
                  testing::Contains(stream));
    }
  }
}

}  // namespace
}  // namespace tensorbus::bus
