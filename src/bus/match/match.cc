#include "bus/match/match.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>

#include "base/refuse.h"
#include "bus/match/fitting.h"
#include "bus/match/pair_plans.h"
#include "bus/match/side_tensors.h"
#include "bus/match/work.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

using tensorbus::to_string;

// The side of a group in this pair, if it has one.
const Side* side_in(const Group& group, const std::string& pair) {
  const auto found = group.sides.lower_bound({pair, ""});
  return found != group.sides.end() && found->first.pair == pair ? &found->second : nullptr;
}

std::size_t index_in(const Side& side, Rank rank) {
  return static_cast<std::size_t>(std::ranges::find(side.ranks, rank) - side.ranks.begin());
}

// A rank that failed would have to be named, which takes a whole search.
bool lacks_registrations(const Catalog& catalog, const std::string& batch, const End& end) {
  if (catalog.has_failed(batch)) return false;
  const auto& side = catalog.members(end);
  const auto first =
      std::ranges::find_if(side, [](const auto& each) { return each.second->failed.empty(); });
  return first != side.end() &&
         std::ssize(catalog.registered(batch, end)) < first->second->world_size;
}

Layout alone(Rank rank) { return Layout(Mesh({1}, std::vector{rank}), {Replicate{}}); }

// Reads for nobody: keeps the place of a tensor in the batch.
constexpr Rank nobody = std::numeric_limits<Rank>::max();

bool has_partial(const Group& group, const Side& side) {
  return std::ranges::any_of(side.ranks, [&](Rank rank) {
    return std::ranges::any_of(group.members.at(rank)->layouts, [](const SideLayout& layout) {
      return std::ranges::any_of(layout.placements, [](const Placement& placement) {
        return std::holds_alternative<Partial>(placement);
      });
    });
  });
}

bool sends_versions(const Group& group) {
  return std::ranges::any_of(group.members, [](const auto& member) {
    return member.second->versioned && member.second->versioned->direction == Direction::send;
  });
}

// The tensor that a side takes of those that are sent, by name or else by position.
const SideTensor* taken_as(const std::vector<SideTensor>& taken, const SideTensor& sent,
                           std::size_t position) {
  if (sent.name.empty()) return &taken.at(position);
  const auto found = std::ranges::lower_bound(taken, sent.name, {}, &SideTensor::name);
  return found != taken.end() && found->name == sent.name ? &*found : nullptr;
}

// The items of a registration, found by name one after the other.
class ItemFinder {
 public:
  ItemFinder(const BatchMember& member, const End& end)
      : member_(member), items_(items_of(member, end)), next_(items_.begin()) {}

  // Appends the items of a tensor, `count` of them; tensors come in the order of names.
  void append(const std::string& name, std::size_t count,
              std::vector<std::optional<std::size_t>>& order) {
    for (std::size_t at = 0; at < count; ++at) {
      while (next_ != items_.end() && member_.tensors[*next_].name < name) ++next_;
      const bool here = next_ != items_.end() && member_.tensors[*next_].name == name;
      order.push_back(here ? std::optional(*next_++) : std::nullopt);
    }
  }

 private:
  const BatchMember& member_;
  const std::vector<std::size_t>& items_;
  std::vector<std::size_t>::const_iterator next_;
};

// For every tensor of the senders as many items of this registration as `count` says.
template <typename Count>
ItemOrder order_of(const Group& sources, const BatchMember& member, Count count) {
  ItemOrder order;
  for (const auto& [end, side] : sources.sides) {
    const auto own = std::ranges::find(member.ends, end.pair, &End::pair);
    const auto& tensors = sources.tensors(side).of(side.ranks.front());
    if (own == member.ends.end()) {
      for (const SideTensor& tensor : tensors) {
        order.insert(order.end(), count(tensor, End()), std::nullopt);
      }
      continue;
    }
    const auto& items = items_of(member, *own);
    const bool positions =
        !side.layout || (!items.empty() && member.tensors[items.front()].name.empty());
    if (positions) {
      for (const std::size_t at : items) order.emplace_back(at);
      continue;
    }
    ItemFinder finder(member, *own);
    for (const SideTensor& tensor : tensors) {
      finder.append(tensor.name, count(tensor, *own), order);
    }
  }
  return order;
}

}  // namespace

const SideTensors& Group::tensors(const Side& side) const {
  const auto found = tensors_.find(side.end);
  if (found != tensors_.end()) return found->second;
  return tensors_.emplace(side.end, tensors_of(members, side)).first->second;
}

std::vector<End> remote_ends(const BatchMember& member) {
  std::vector<End> ends;
  for (std::size_t at = 0; at < member.ends.size(); ++at) {
    ends.push_back({member.ends[at].pair, member.remotes[at]});
  }
  return ends;
}

Status failure_of(const std::string& batch, Rank rank, const BatchMember& member) {
  return {Code::invalid_argument,
          fmt::format("batch \"{}\": rank {} failed: {}", batch, rank, member.failed)};
}

void take_group(GroupPtr& group, const GroupPtr& known) {
  if (group == nullptr || known == nullptr || group == known) return;
  if (known->is(*group)) group = known;
}

GroupFinding find_group(const Catalog& catalog, const std::string& batch,
                        const std::vector<End>& ends, const KnownFailures& known, Search search) {
  Group group;
  std::vector<std::string> missing;
  std::set<End> seen(ends.begin(), ends.end());
  std::vector<End> open(seen.begin(), seen.end());
  while (!open.empty()) {
    const End end = open.back();
    open.pop_back();
    if (search == Search::in_short && lacks_registrations(catalog, batch, end)) {
      return {nullptr, "", true, std::move(seen)};
    }
    SideFinding found;
    try {
      found = find_side(catalog, end, nullptr);
    } catch (const Error& error) {
      found.missing = error.what();  // a newcomer who does not fit: it will be told, not we
    }
    if (!found.side) {
      missing.push_back(found.missing);
      continue;
    }
    std::vector<Rank> absent;
    std::vector<Rank> unknown;
    for (const Rank rank : found.side->ranks) {
      const auto member = catalog.registration(batch, end, rank);
      if (member == nullptr || known.contains({rank, member->registration})) {
        absent.push_back(rank);
        continue;
      }
      if (!member->failed.empty()) {
        throw FailedElsewhere(failure_of(batch, rank, *member));
      }
      if (!member->tensors.known()) unknown.push_back(rank);
      const auto [at, fresh] = group.members.emplace(rank, member);
      if (!fresh && at->second != member) {
        refuse(
            fmt::format("batch \"{}\": rank {} has two registrations that other ranks have "
                        "registered as one",
                        batch, rank));
      }
      for (const End& linked : member->ends) {
        if (seen.insert(linked).second) open.push_back(linked);
      }
    }
    if (!absent.empty()) {
      missing.push_back(
          fmt::format("rank {} of {} has not registered", fmt::join(absent, ", "), to_string(end)));
    }
    if (!unknown.empty()) {
      missing.push_back(fmt::format("what rank {} of {} has registered is not in the store yet",
                                    fmt::join(unknown, ", "), to_string(end)));
    }
    group.sides.emplace(end, *std::move(found.side));
  }
  if (!missing.empty()) {
    return {nullptr, fmt::format("{}", fmt::join(missing, "; ")), false, std::move(seen)};
  }
  group.name = group.sides.begin()->first;
  return {std::make_shared<const Group>(std::move(group)), "", false, std::move(seen)};
}

void check_agrees(const Group& group) {
  for (const auto& [end, side] : group.sides) group.tensors(side);
}

bool agrees(const Group& group) {
  try {
    check_agrees(group);
  } catch (const Error&) {
    return false;
  }
  return true;
}

void check_tensors(const Group& one, const Group& other) {
  for (const auto& [end, side] : one.sides) {
    const Side* facing = side_in(other, end.pair);
    if (facing == nullptr) continue;
    check_match(side, *facing);
    const SideTensors& ours = one.tensors(side);
    const SideTensors& theirs = other.tensors(*facing);
    if (side.layout && sends_versions(one)) {
      check_taken(side, ours, *facing, theirs);
      continue;
    }
    if (side.layout && sends_versions(other)) {
      check_taken(*facing, theirs, side, ours);
      continue;
    }
    for (std::size_t at = 0; at < (side.layout ? 1 : side.ranks.size()); ++at) {
      check_alike(end, ours.of(side.ranks[at]), facing->end, theirs.of(facing->ranks[at]));
    }
  }
}

Status may_send(const Group& sources, const Group& targets) {
  for (const auto& [end, side] : targets.sides) {
    if (side_in(sources, end.pair) == nullptr) continue;
    if (!side.partial() && !has_partial(targets, side)) continue;
    return {
        Code::invalid_argument,
        fmt::format("{} has a Partial placement: it can send, but not receive", to_string(end))};
  }
  return {};
}

Status are_named(const Group& sources, const Group& targets) {
  for (const auto& [end, side] : sources.sides) {
    const Side* facing = side_in(targets, end.pair);
    if (facing == nullptr || facing->remote == end.side) continue;
    return {Code::invalid_argument,
            fmt::format("{} receives from \"{}\", whom it named, and not from \"{}\"",
                        to_string(facing->end), facing->remote, end.side)};
  }
  return {};
}

Passage make_passage(const Group& sources, const Group& targets, Rank reader) {
  ++matching_work().passages;
  Passage passage;
  std::string text;
  const auto member = targets.members.find(reader);
  for (const auto& [end, side] : sources.sides) {
    const Side* facing = side_in(targets, end.pair);
    const bool takes_part = facing != nullptr && member != targets.members.end() &&
                            std::ranges::find(facing->ranks, reader) != facing->ranks.end();
    const SideTensors& ours = sources.tensors(side);
    const SideTensors* theirs = nullptr;
    Rank source = side.ranks.front();
    if (takes_part) {
      theirs = &targets.tensors(*facing);
      if (!side.layout) source = side.ranks.at(index_in(*facing, reader));
    }
    PairPlans plans(side, side.layout && takes_part ? facing : nullptr);
    PairPlans for_nobody(side, nullptr);
    const plan::Spread nowhere = alone(nobody);
    const auto& have = ours.of(source);
    for (std::size_t at = 0; at < have.size(); ++at) {
      const SideTensor* wanted = takes_part ? taken_as(theirs->of(reader), have[at], at) : nullptr;
      passage.plans.push_back(wanted != nullptr
                                  ? plans.make(have[at], wanted->spread, wanted->dtype)
                                  : for_nobody.make(have[at], nowhere, have[at].dtype));
    }
    text += plans.text() + for_nobody.text();
  }
  passage.fingerprint = XXH3_64bits(text.data(), text.size());
  return passage;
}

std::vector<std::string> labels_of(const Group& sources) {
  std::vector<std::string> labels;
  for (const auto& [end, side] : sources.sides) {
    const SideTensors& tensors = sources.tensors(side);
    for (const SideTensor& tensor : tensors.of(side.ranks.front())) {
      labels.insert(labels.end(), tensor.items, tensor.label);
    }
  }
  return labels;
}

ItemOrder source_order(const Group& sources, const BatchMember& member) {
  return order_of(sources, member, [](const SideTensor& sent, const End&) { return sent.items; });
}

ItemOrder target_order(const Group& sources, const Group& targets, const BatchMember& member) {
  return order_of(sources, member, [&](const SideTensor& sent, const End& end) {
    const auto side = targets.sides.find(end);
    if (side == targets.sides.end() || sent.name.empty()) return std::size_t{1};
    const auto& taken = targets.tensors(side->second).of(side->second.ranks.front());
    const SideTensor* wanted = taken_as(taken, sent, 0);
    return wanted == nullptr ? std::size_t{1} : wanted->items;
  });
}

}  // namespace tensorbus::bus
