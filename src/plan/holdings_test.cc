// proves: L2.3, L2.4
#include "plan/holdings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/testing/refusal.h"
#include "plan/testing/random_case.h"

namespace tensorbus::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Plan plan_of(const Spread& source, const Spread& target, Shape shape, const Hosts& hosts = {}) {
  return Plan(Holdings(source, target, std::move(shape), hosts), float32);
}

// Boxes that may overlap, be empty, and reach beyond the end.
Boxes random_boxes(RandomCase& random, const Shape& shape) {
  Boxes boxes;
  for (std::int64_t rank = random.below(5); rank >= 0; --rank) {
    auto& list = boxes[3 * rank + 1];
    for (std::int64_t count = random.below(4); count > 0; --count) {
      Box box;
      for (const std::int64_t size : shape) {
        box.start.push_back(random.below(size + 2));
        box.shape.push_back(random.below(size + 2));
      }
      list.push_back(box);
    }
  }
  return boxes;
}

Spread random_spread(RandomCase& random, const Shape& shape, bool may_be_partial) {
  if (random.below(3) == 0) return random.layout(shape.size(), may_be_partial);
  return random_boxes(random, shape);
}

std::vector<Rank> ranks_of(const Spread& spread) {
  if (const auto* layout = std::get_if<Layout>(&spread)) return layout->mesh().ranks();
  std::vector<Rank> ranks;
  for (const auto& [rank, list] : std::get<Boxes>(spread)) ranks.push_back(rank);
  return ranks;
}

struct Case {
  explicit Case(RandomCase& random)
      : shape(random.shape()),
        source(random_spread(random, shape, true)),
        target(random_spread(random, shape, false)) {
    if (random.below(3) == 0) return;
    const auto name = [&](auto) { return "host" + std::to_string(random.below(3)); };
    for (const Rank rank : ranks_of(source)) hosts.source.push_back(name(rank));
    for (const Rank rank : ranks_of(target)) hosts.target.push_back(name(rank));
  }
  Plan plan() const { return plan_of(source, target, shape, hosts); }

  Shape shape;
  Spread source;
  Spread target;
  Hosts hosts;
};

using Element = std::vector<std::int64_t>;

std::vector<std::int64_t> indices_of(const Intervals& intervals) {
  std::vector<std::int64_t> all;
  for (const Interval& each : intervals) {
    for (std::int64_t i = each.begin; i < each.end; ++i) all.push_back(i);
  }
  return all;
}

// The elements of the tensor that a local tensor holds, by their local indices.
std::map<Element, Element> elements_of(const Spread& spread, const Shape& shape, Rank rank,
                                       std::size_t box) {
  std::vector<std::vector<std::int64_t>> dims;
  if (const auto* layout = std::get_if<Layout>(&spread)) {
    for (const Intervals& dim : layout->holding(shape, rank).dims) dims.push_back(indices_of(dim));
  } else {
    const Box& own = std::get<Boxes>(spread).at(rank).at(box);
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      const std::int64_t end = std::min(own.start[dim] + own.shape[dim], shape[dim]);
      dims.push_back(indices_of({{own.start[dim], std::max(own.start[dim], end)}}));
    }
  }
  std::map<Element, Element> elements{{{}, {}}};
  for (const auto& dim : dims) {
    std::map<Element, Element> next;
    for (const auto& [local, whole] : elements) {
      for (std::size_t i = 0; i < dim.size(); ++i) {
        Element at = local;
        at.push_back(static_cast<std::int64_t>(i));
        next[at] = whole;
        next[at].push_back(dim[i]);
      }
    }
    elements = std::move(next);
  }
  return elements;
}

// The local elements of a piece on both sides.
std::vector<std::pair<Element, Element>> elements_of(const Piece& piece) {
  std::vector<std::pair<Element, Element>> elements{{}};
  for (const Spans& spans : piece.dims) {
    std::vector<std::pair<Element, Element>> next;
    for (const auto& [source, target] : elements) {
      for (const Span& span : spans) {
        for (std::int64_t i = 0; i < span.length; ++i) {
          next.emplace_back(source, target);
          next.back().first.push_back(span.source + i);
          next.back().second.push_back(span.target + i);
        }
      }
    }
    elements = std::move(next);
  }
  return elements;
}

std::size_t boxes_of(const Spread& spread, Rank rank) {
  const auto* boxes = std::get_if<Boxes>(&spread);
  return boxes == nullptr ? 1 : boxes->at(rank).size();
}

std::set<Element> held_by_anyone(const Case& each) {
  std::set<Element> held;
  for (const Rank rank : ranks_of(each.source)) {
    for (std::size_t box = 0; box < boxes_of(each.source, rank); ++box) {
      for (const auto& [local, whole] : elements_of(each.source, each.shape, rank, box)) {
        held.insert(whole);
      }
    }
  }
  return held;
}

TEST(Holdings, EveryElementThatAnyoneHoldsIsWrittenOnceAndTheRestIsMissing) {
  RandomCase random(21);
  int missing = 0;
  for (int round = 0; round < 150; ++round) {
    const Case each(random);
    const Plan plan = each.plan();
    const std::set<Element> held = held_by_anyone(each);
    for (const Rank rank : ranks_of(each.target)) {
      std::map<std::pair<std::size_t, Element>, int> writes;
      for (const Piece& piece : plan.reads(rank)) {
        EXPECT_EQ(piece.target, rank);
        EXPECT_GT(piece.elements(), 0);
        const auto to = elements_of(each.target, each.shape, rank, piece.target_box);
        for (const Rank member : piece.source.ranks) {
          const auto from = elements_of(each.source, each.shape, member, piece.source_box);
          for (const auto& [source, target] : elements_of(piece)) {
            EXPECT_EQ(from.at(source), to.at(target));
          }
        }
        for (const auto& [source, target] : elements_of(piece)) {
          ++writes[{piece.target_box, target}];
        }
      }
      std::multiset<Element> not_held;
      for (std::size_t box = 0; box < boxes_of(each.target, rank); ++box) {
        for (const auto& [local, whole] : elements_of(each.target, each.shape, rank, box)) {
          EXPECT_EQ((writes[{box, local}]), held.contains(whole) ? 1 : 0);
          if (!held.contains(whole)) not_held.insert(whole);
        }
      }
      std::multiset<Element> reported;
      for (const Box& box : Holdings(each.source, each.target, each.shape).missing(rank)) {
        const Spread one = Boxes{{0, {box}}};
        for (const auto& [local, whole] : elements_of(one, each.shape, 0, 0)) {
          const auto* layout = std::get_if<Layout>(&each.target);
          if (layout == nullptr) {
            reported.insert(whole);
            continue;
          }
          // A box round what a strided shard asks for holds more than that.
          for (const auto& [own, asked] : elements_of(each.target, each.shape, rank, 0)) {
            if (asked == whole) reported.insert(whole);
          }
        }
      }
      EXPECT_EQ(reported, not_held);
      missing += static_cast<int>(not_held.size());
    }
  }
  EXPECT_GT(missing, 50);
}

bool less(const Piece& a, const Piece& b) {
  const auto key = [](const Piece& piece) {
    std::vector<std::int64_t> places;
    for (const Spans& spans : piece.dims) {
      for (const Span& span : spans) places.insert(places.end(), {span.source, span.target});
    }
    return std::tuple(piece.target, piece.source, piece.source_box, piece.target_box, places);
  };
  return key(a) < key(b);
}

std::vector<Piece> sorted(std::vector<Piece> pieces) {
  std::ranges::sort(pieces, less);
  return pieces;
}

TEST(Holdings, WhatIsReadIsWhatIsServed) {
  RandomCase random(22);
  for (int round = 0; round < 150; ++round) {
    const Case each(random);
    const Plan plan = each.plan();
    std::map<Rank, std::vector<Piece>> expected;
    for (const Rank rank : ranks_of(each.target)) {
      for (const Piece& piece : plan.reads(rank)) {
        for (const Rank member : piece.source.ranks) expected[member].push_back(piece);
      }
    }
    for (const Rank rank : ranks_of(each.source)) {
      EXPECT_EQ(sorted(plan.serves(rank)), sorted(expected[rank]));
    }
  }
}

// Streams of both ends are packed in the same order.
TEST(Holdings, StreamsOfBothEndsAreTheSame) {
  RandomCase random(24);
  for (int round = 0; round < 100; ++round) {
    const Case each(random);
    const std::vector<Plan> batch(2, each.plan());
    std::map<std::pair<Rank, Group>, Stream> read;
    for (const Rank rank : ranks_of(each.target)) {
      for (Stream& stream : read_streams(batch, rank, 64)) {
        read[{rank, stream.source}] = std::move(stream);
      }
    }
    for (const Rank rank : ranks_of(each.source)) {
      for (const Stream& stream : serve_streams(batch, rank, 64)) {
        EXPECT_EQ(stream, (read[{stream.reader, stream.source}]));
      }
    }
  }
}

// The same replicas are chosen whichever way a layout is planned.
TEST(Holdings, OfTwoLayoutsGiveThePlanOfTheLayouts) {
  RandomCase random(23);
  for (int round = 0; round < 400; ++round) {
    const Shape shape = random.shape();
    const Layout source = random.layout(shape.size(), true);
    const Layout target = random.layout(shape.size(), false);
    const Hosts hosts = random.hosts(source, target);
    const Plan by_layout = make(source, target, shape, float32, hosts);
    const Plan by_holding = plan_of(source, target, shape, hosts);
    SCOPED_TRACE(to_string(source) + " -> " + to_string(target) + " " + to_string(shape));
    for (const Rank rank : target.mesh().ranks()) {
      EXPECT_EQ(sorted(by_holding.reads(rank)), sorted(by_layout.reads(rank)));
    }
    EXPECT_EQ(by_holding.wire_dtype(), by_layout.wire_dtype());
  }
}

TEST(Holdings, EqualBoxesAreReplicasThatShareTheirReaders) {
  const Box top{{0}, {4}};
  const Box rest{{4}, {4}};
  const Box all{{0}, {8}};
  const Boxes source{{0, {top}}, {1, {rest}}, {2, {top}}, {3, {rest}}};
  const Boxes target{{8, {all}}, {9, {all}}};
  const Plan plan = plan_of(source, target, {8});
  std::set<Rank> serving;
  for (const Rank reader : {8, 9}) {
    for (const Piece& piece : plan.reads(reader)) serving.insert(piece.source.ranks.front());
  }
  EXPECT_THAT(serving, ElementsAre(0, 1, 2, 3));
  const Plan near = plan_of(source, target, {8}, {{"a", "a", "b", "b"}, {"b", "a"}});
  EXPECT_THAT(near.reads(8),
              testing::Each(testing::Field(
                  &Piece::source, testing::Field(&Group::ranks, testing::Each(testing::Ge(2))))));
}

TEST(Holdings, OverlappingBoxesAreReadFromTheReadersOwnHostFirst) {
  const Boxes source{{0, {{{0}, {6}}}}, {1, {{{2}, {6}}}}};
  const Boxes target{{5, {{{0}, {8}}}}};
  const Plan plan = plan_of(source, target, {8}, {{"a", "b"}, {"b"}});
  EXPECT_EQ(sorted(plan.reads(5)),
            sorted({{5, {{0}, {}}, {{{0, 0, 2}}}}, {5, {{1}, {}}, {{{0, 2, 6}}}}}));
}

TEST(Holdings, ManyBoxesOfEqualSizeAreFoundEachByItself) {
  Boxes source;
  Boxes target;
  constexpr std::int64_t edge = 32;
  for (std::int64_t at = 0; at < edge * edge; ++at) {
    source[at] = {{{at / edge * 4, at % edge * 4}, {4, 4}}};
    target[at] = {{{at % edge * 4, at / edge * 4}, {4, 4}}};
  }
  const Plan plan = plan_of(source, target, {edge * 4, edge * 4});
  for (const Rank rank : {0, 33, 500, 1023}) {
    const auto pieces = plan.reads(rank);
    ASSERT_EQ(pieces.size(), 1U);
    EXPECT_EQ(pieces[0].source.ranks[0], rank % edge * edge + rank / edge);
    EXPECT_EQ(pieces[0].elements(), 16);
  }
}

TEST(Holdings, BadBoxesAreRefused) {
  const auto refused = [](const Boxes& boxes) {
    return refusal([&] { Holdings(boxes, parse_layout("1:R"), {4}); });
  };
  EXPECT_THAT(refused({{0, {{{0, 0}, {4, 1}}}}}), HasSubstr("does not fit"));
  EXPECT_THAT(refused({{0, {{{-1}, {4}}}}}), HasSubstr("begins at"));
  EXPECT_THAT(refused({{0, {{{INT64_MAX}, {4}}}}}), HasSubstr("63 bits"));
  EXPECT_THAT(refusal([] { Holdings(Boxes{}, parse_layout("2:P"), {4}); }), HasSubstr("Partial"));
  EXPECT_THAT(refusal([] {
                Holdings(Boxes{{0, {}}}, parse_layout("1:R"), {4}, {{"a", "b"}, {"a"}});
              }),
              HasSubstr("2 hosts are given for the source's 1 ranks"));
}

}  // namespace
}  // namespace tensorbus::plan
