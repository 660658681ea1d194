#include "bus/match/pair.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

using tensorbus::to_string;

[[noreturn]] void disagree(const End& end, const std::string& why) {
  throw Error(Code::invalid_argument, to_string(end) + ": " + why);
}

std::string describe(const std::optional<SideLayout>& layout) {
  if (!layout) return "no mesh";
  std::vector<std::string> placements;
  for (const Placement& placement : layout->placements) placements.push_back(to_string(placement));
  return fmt::format("a mesh {} with {}", to_string(layout->mesh), fmt::join(placements, ", "));
}

// Shape and placements; where a rank stands is its own.
bool same_layout(const std::optional<SideLayout>& a, const std::optional<SideLayout>& b) {
  if (!a || !b) return !a && !b;
  return a->mesh == b->mesh && a->placements == b->placements &&
         a->coordinate.has_value() == b->coordinate.has_value();
}

void check_agreement(const End& end, Rank first_rank, const PairMember& first, Rank rank,
                     const PairMember& member) {
  if (member.world_size != first.world_size) {
    disagree(end, fmt::format("rank {} expects {} ranks, rank {} expects {}", first_rank,
                              first.world_size, rank, member.world_size));
  }
  if (!same_layout(member.layout, first.layout)) {
    disagree(end, fmt::format("rank {} has {}, rank {} has {}; all ranks of a side have the same",
                              first_rank, describe(first.layout), rank, describe(member.layout)));
  }
  if (member.remote != first.remote) {
    disagree(end, fmt::format("rank {} waits for \"{}\", rank {} for \"{}\"", first_rank,
                              first.remote, rank, member.remote));
  }
}

// The members of a side that have not failed, by rank.
using Living = std::vector<std::pair<Rank, const PairMember*>>;

// By position if ranks say where they stand, else by rank.
std::map<std::size_t, Rank> places(const End& end, const Living& members) {
  std::map<std::size_t, Rank> places;
  std::size_t next = 0;
  for (const auto& [rank, member] : members) {
    const auto& layout = member->layout;
    if (!layout || !layout->coordinate) {
      places[next++] = rank;
      continue;
    }
    const auto position = position_in(layout->mesh, *layout->coordinate);
    if (!position) {
      disagree(end, fmt::format("rank {} stands at ({}), outside of its mesh {}", rank,
                                fmt::join(*layout->coordinate, ", "), to_string(layout->mesh)));
    }
    if (const auto [at, fresh] = places.emplace(*position, rank); !fresh) {
      disagree(end, fmt::format("ranks {} and {} both stand at ({}) of the mesh", at->second, rank,
                                fmt::join(*layout->coordinate, ", ")));
    }
  }
  return places;
}

Living living(const Catalog& catalog, const End& end, const KnownFailures* known) {
  Living members;
  for (const auto& [rank, member] : catalog.members(end)) {
    if (member->failed.empty()) {
      members.emplace_back(rank, member.get());
    } else if (known != nullptr && !known->contains({rank, member->attempt})) {
      throw FailedElsewhere(Code::invalid_argument,
                            fmt::format("rank {} failed: {}", rank, member->failed));
    }
  }
  return members;
}

void check_mesh(const End& end, const PairMember& first) {
  if (!first.layout) return;
  const Layout probe(Mesh(first.layout->mesh), first.layout->placements);
  if (static_cast<std::int64_t>(probe.mesh().size()) == first.world_size) return;
  disagree(end, fmt::format("the mesh {} has {} ranks, {} are expected",
                            to_string(first.layout->mesh), probe.mesh().size(), first.world_size));
}

bool is_incomplete(const Living& members) {
  return members.empty() || std::ssize(members) < members.front().second->world_size;
}

// Throws Error(invalid_argument) when they disagree, also while some are missing.
Living agreeing(const Catalog& catalog, const End& end, const KnownFailures* known) {
  Living members = living(catalog, end, known);
  if (members.empty()) return members;
  const auto& [first_rank, first] = members.front();
  const std::int64_t size = first->world_size;
  if (size < 1) disagree(end, fmt::format("rank {} expects {} ranks", first_rank, size));
  for (const auto& [rank, member] : members) {
    check_agreement(end, first_rank, *first, rank, *member);
  }
  check_mesh(end, *first);
  if (std::ssize(members) > size) {
    std::vector<Rank> ranks;
    for (const auto& [rank, member] : members) ranks.push_back(rank);
    disagree(end, fmt::format("ranks {} say they belong to it, {} are expected",
                              fmt::join(ranks, ", "), size));
  }
  if (first->layout && first->layout->coordinate) places(end, members);
  return members;
}

// The sides that wait for this side, if the one that this side waits for is not there: one of the
// two names may be mistyped. Empty: no side does.
std::string who_waits_instead(const Catalog& catalog, const InitPair& pair) {
  std::vector<std::string> sides;
  for (const auto& [end, members] : catalog.pairs()) {
    if (end.side == pair.local || end.side == pair.remote) continue;
    std::vector<Rank> ranks;
    for (const auto& [rank, member] : members) {
      if (member->remote == pair.local && member->failed.empty()) ranks.push_back(rank);
    }
    if (ranks.empty()) continue;
    sides.push_back(fmt::format("\"{}\" (rank {})", end.side, fmt::join(ranks, ", ")));
  }
  if (sides.empty()) return {};
  return fmt::format("; side {} waits for \"{}\": did you mean it?", fmt::join(sides, " and side "),
                     pair.local);
}

}  // namespace

std::optional<std::size_t> position_in(const Shape& mesh, const Shape& coordinate) {
  if (coordinate.size() != mesh.size()) return std::nullopt;
  std::size_t position = 0;
  for (std::size_t dim = 0; dim < mesh.size(); ++dim) {
    if (coordinate[dim] < 0 || coordinate[dim] >= mesh[dim]) return std::nullopt;
    position =
        position * static_cast<std::size_t>(mesh[dim]) + static_cast<std::size_t>(coordinate[dim]);
  }
  return position;
}

SideFinding find_side(const Catalog& catalog, const End& end, const KnownFailures* known) {
  const Living members = agreeing(catalog, end, known);
  if (members.empty()) return {std::nullopt, fmt::format("{} has no ranks yet", to_string(end))};
  const PairMember& first = *members.front().second;
  if (is_incomplete(members)) {
    std::vector<Rank> ranks;
    for (const auto& [rank, member] : members) ranks.push_back(rank);
    return {std::nullopt, fmt::format("{} has {} of {} ranks (rank {} {} there)", to_string(end),
                                      members.size(), first.world_size, fmt::join(ranks, ", "),
                                      ranks.size() == 1 ? "is" : "are")};
  }
  Side side{end, first.remote, {}, {}, std::nullopt};
  for (const auto& [position, rank] : places(end, members)) {
    side.ranks.push_back(rank);
    side.hosts.push_back(std::ranges::lower_bound(members, rank, {}, &Living::value_type::first)
                             ->second->address.identity.host);
  }
  if (first.layout) {
    side.layout.emplace(Mesh(first.layout->mesh, side.ranks), first.layout->placements);
  }
  return {std::move(side), ""};
}

void check_match(const Side& one, const Side& other) {
  const std::string what = fmt::format("pair \"{}\": ", one.end.pair);
  if (one.layout.has_value() != other.layout.has_value()) {
    const auto& [with, without] = one.layout ? std::tie(one, other) : std::tie(other, one);
    throw Error(Code::invalid_argument,
                fmt::format("{}\"{}\" has a mesh and \"{}\" has none; give both one, or neither",
                            what, with.end.side, without.end.side));
  }
  if (!one.layout && one.ranks.size() != other.ranks.size()) {
    throw Error(
        Code::invalid_argument,
        fmt::format("{}without meshes ranks face each other one to one, but \"{}\" has {} "
                    "and \"{}\" has {}",
                    what, one.end.side, one.ranks.size(), other.end.side, other.ranks.size()));
  }
  if (one.partial() && other.partial()) {
    throw Error(Code::invalid_argument,
                what + "both sides have Partial placements; only a side that sends can");
  }
}

Verdict assess(const Catalog& catalog, const InitPair& pair, const KnownFailures& known,
               Search search) {
  const End here{pair.pair, pair.local};
  const End there{pair.pair, pair.remote};
  const auto lacks_ranks = [&](const End& end) {
    return is_incomplete(agreeing(catalog, end, &known));
  };
  try {
    if (search == Search::in_short) {
      // Both: also while ranks are missing on one side, those of the other may disagree.
      const bool lacks_here = lacks_ranks(here);
      const bool lacks_there = !pair.alone && lacks_ranks(there);
      if (lacks_here || lacks_there) return {};
    }
    const SideFinding local = find_side(catalog, here, &known);
    if (pair.alone) return {local.side.has_value(), {}, false, local.missing};
    const SideFinding remote = find_side(catalog, there, &known);
    if (local.side && remote.side) {
      check_match(*local.side, *remote.side);
      return {true, {}, false, ""};
    }
    std::string missing = local.missing;
    if (!missing.empty() && !remote.missing.empty()) missing += "; ";
    missing += remote.missing;
    if (catalog.members({pair.pair, pair.remote}).empty()) {
      missing += who_waits_instead(catalog, pair);
    }
    return {false, {}, false, missing};
  } catch (const FailedElsewhere& error) {
    return {false, error.status(), true, ""};
  } catch (const Error& error) {
    return {false, error.status(), false, ""};
  }
}

KnownFailures failures(const Catalog& catalog, const InitPair& pair) {
  KnownFailures known;
  for (const std::string& side : {pair.local, pair.remote}) {
    for (const auto& [rank, member] : catalog.members({pair.pair, side})) {
      if (!member->failed.empty()) known.insert({rank, member->attempt});
    }
  }
  return known;
}

}  // namespace tensorbus::bus
