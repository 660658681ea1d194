#include "bus/match/match.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <set>

#include "base/refuse.h"
#include "bus/match/side_tensors.h"
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

// Tables of a pair, one for every two layouts that its tensors have.
class PairTables {
 public:
  using Numbered = std::pair<std::size_t, plan::Tables>;

  // Without `facing` nobody knows who is near.
  const Numbered& between(const Layout& from, const Layout& to, const Side& side,
                          const Side* facing) {
    for (const Numbered& each : tables_) {
      if (each.second.source() == from && each.second.target() == to) return each;
    }
    plan::Hosts hosts;
    if (facing != nullptr) hosts = {hosts_of(from, side), hosts_of(to, *facing)};
    text_ += fmt::format("{}>{}[{}>{}]", to_string(from), to_string(to),
                         fmt::join(hosts.source, ","), fmt::join(hosts.target, ","));
    tables_.emplace_back(tables_.size(), plan::Tables(from, to, hosts));
    return tables_.back();
  }
  const std::string& text() const noexcept { return text_; }

 private:
  static std::vector<std::string> hosts_of(const Layout& layout, const Side& side) {
    std::vector<std::string> hosts;
    for (const Rank rank : layout.mesh().ranks()) {
      hosts.push_back(side.hosts.at(index_in(side, rank)));
    }
    return hosts;
  }

  std::deque<Numbered> tables_;  // which stay where they are
  std::string text_;
};

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

GroupFinding find_group(const Catalog& catalog, const std::string& batch,
                        const std::vector<End>& ends, const KnownFailures& known) {
  Group group;
  GroupFinding finding;
  std::vector<std::string> missing;
  std::set<End> seen(ends.begin(), ends.end());
  std::vector<End> open(seen.begin(), seen.end());
  while (!open.empty()) {
    const End end = open.back();
    open.pop_back();
    Finding found;
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
    for (const Rank rank : found.side->ranks) {
      const auto member = catalog.registration(batch, end, rank);
      if (member == nullptr || known.contains({rank, member->registration})) {
        absent.push_back(rank);
        continue;
      }
      if (!member->failed.empty()) {
        throw FailedElsewhere(failure_of(batch, rank, *member));
      }
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
      finding.absent.insert(finding.absent.end(), absent.begin(), absent.end());
    }
    group.sides.emplace(end, *std::move(found.side));
  }
  if (!missing.empty()) {
    finding.missing = fmt::format("{}", fmt::join(missing, "; "));
    return finding;
  }
  group.name = group.sides.begin()->first;
  finding.group = std::move(group);
  return finding;
}

void check_tensors(const Group& one, const Group& other) {
  for (const auto& [end, side] : one.sides) {
    const Side* facing = side_in(other, end.pair);
    if (facing == nullptr) continue;
    check_match(side, *facing);
    const SideTensors& ours = one.tensors(side);
    const SideTensors& theirs = other.tensors(*facing);
    for (std::size_t at = 0; at < (side.layout ? 1 : side.ranks.size()); ++at) {
      check_tensors(end, ours.of(side.ranks[at]), facing->end, theirs.of(facing->ranks[at]));
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
    PairTables tables;
    const auto& have = ours.of(source);
    for (std::size_t at = 0; at < have.size(); ++at) {
      const SideTensor* wanted = takes_part ? &theirs->of(reader).at(at) : nullptr;
      const Dtype target = wanted != nullptr ? wanted->dtype : have[at].dtype;
      const auto& [number, between] =
          tables.between(have[at].layout, wanted != nullptr ? wanted->layout : alone(nobody), side,
                         side.layout && takes_part ? facing : nullptr);
      passage.plans.emplace_back(between, have[at].shape, plan::Types{have[at].dtype, target});
      text += fmt::format("{}:{}{}:{};", number, to_string(have[at].dtype),
                          to_string(have[at].shape), to_string(target));
    }
    text += tables.text();
  }
  passage.fingerprint = XXH3_64bits(text.data(), text.size());
  return passage;
}

std::vector<std::string> labels_of(const Group& sources) {
  std::vector<std::string> labels;
  for (const auto& [end, side] : sources.sides) {
    const SideTensors& tensors = sources.tensors(side);
    for (const SideTensor& tensor : tensors.of(side.ranks.front())) labels.push_back(tensor.label);
  }
  return labels;
}

std::vector<std::optional<std::size_t>> item_order(const Group& sources,
                                                   const BatchMember& member) {
  std::vector<std::optional<std::size_t>> order;
  for (const auto& [end, side] : sources.sides) {
    const auto own = std::ranges::find(member.ends, end.pair, &End::pair);
    const auto& tensors = sources.tensors(side).of(side.ranks.front());
    if (own == member.ends.end()) {
      order.insert(order.end(), tensors.size(), std::nullopt);
      continue;
    }
    const auto items = items_of(member, *own);
    const bool positions =
        !side.layout || (!items.empty() && member.tensors[items.front()].name.empty());
    if (positions) {
      for (const std::size_t at : items) order.emplace_back(at);
      continue;
    }
    // Some may not be here. Both are in the order of names.
    auto item = items.begin();
    for (const SideTensor& tensor : tensors) {
      const bool here = item != items.end() && member.tensors[*item].name == tensor.name;
      order.push_back(here ? std::optional(*item++) : std::nullopt);
    }
  }
  return order;
}

}  // namespace tensorbus::bus
