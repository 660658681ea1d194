#include "bus/match.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "tensor/global_shape.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

using tensorbus::to_string;

[[noreturn]] void refuse(const std::string& why) { throw Error(Code::invalid_argument, why); }

// The items of one end, in the order both sides count them.
std::vector<std::size_t> items_of(const BatchMember& member, const End& end) {
  std::vector<std::size_t> items;
  for (std::size_t at = 0; at < member.tensors.size(); ++at) {
    if (member.ends[member.tensors[at].end] == end) items.push_back(at);
  }
  std::ranges::stable_sort(
      items, {}, [&](std::size_t at) -> const std::string& { return member.tensors[at].name; });
  return items;
}

std::string label(const End& end, const TensorRecord& tensor, std::size_t position) {
  if (!tensor.name.empty())
    return fmt::format("tensor \"{}\" of pair \"{}\"", tensor.name, end.pair);
  return fmt::format("tensor {} of pair \"{}\"", position, end.pair);
}

// The tensors of one end, with what all its ranks say of them.
struct EndTensors {
  struct One {
    std::string name;
    std::string label;
    Dtype dtype = Dtype::float32;
    Shape shape;  // of the whole tensor
  };
  std::vector<One> shared;                      // with a layout
  std::map<Rank, std::vector<One>> one_to_one;  // without: each rank has its own

  const std::vector<One>& of(Rank rank) const {
    return one_to_one.empty() ? shared : one_to_one.at(rank);
  }
};

using RankTensors = std::map<Rank, std::vector<const TensorRecord*>>;

RankTensors collect(const Group& group, const Side& side) {
  RankTensors tensors;
  for (const Rank rank : side.ranks) {
    const BatchMember& member = *group.members.at(rank);
    auto& list = tensors[rank];
    for (const std::size_t at : items_of(member, side.end)) list.push_back(&member.tensors[at]);
  }
  return tensors;
}

Shape whole_shape(const Side& side, const RankTensors& tensors, std::size_t at,
                  const std::string& name) {
  std::vector<Shape> locals;
  std::optional<Shape> given;
  for (const Rank rank : side.ranks) {
    const TensorRecord& tensor = *tensors.at(rank)[at];
    locals.push_back(tensor.shape);
    if (!tensor.global_shape) continue;
    if (given && *given != *tensor.global_shape) {
      refuse(fmt::format(
          "{}: rank {} says that its whole shape is {}, another rank of \"{}\" says {}", name, rank,
          to_string(*tensor.global_shape), side.end.side, to_string(*given)));
    }
    given = tensor.global_shape;
  }
  try {
    if (!given) return global_shape(*side.layout, locals);
    check_local_shapes(*side.layout, *given, locals);
    return *given;
  } catch (const Error& error) {
    refuse(name + ": " + error.what());
  }
}

EndTensors tensors_of(const Group& group, const Side& side) {
  const RankTensors tensors = collect(group, side);
  EndTensors result;
  const Rank first_rank = side.ranks.front();
  const auto& first = tensors.at(first_rank);
  for (const auto& [rank, list] : tensors) {
    if (list.size() != first.size()) {
      refuse(fmt::format("{}: rank {} has {} tensors, rank {} has {}", to_string(side.end),
                         first_rank, first.size(), rank, list.size()));
    }
    for (std::size_t at = 0; at < list.size(); ++at) {
      const std::string name = label(side.end, *first[at], at);
      if (list[at]->name != first[at]->name) {
        refuse(fmt::format("{}: rank {} has \"{}\" in the place of rank {}'s \"{}\"", name, rank,
                           list[at]->name, first_rank, first[at]->name));
      }
      if (side.layout && list[at]->dtype != first[at]->dtype) {
        refuse(fmt::format("{}: rank {} has {}, rank {} has {}", name, first_rank,
                           to_string(first[at]->dtype), rank, to_string(list[at]->dtype)));
      }
      if (!side.layout) {
        result.one_to_one[rank].push_back({list[at]->name, name, list[at]->dtype, list[at]->shape});
      }
    }
  }
  if (side.layout) {
    for (std::size_t at = 0; at < first.size(); ++at) {
      const std::string name = label(side.end, *first[at], at);
      result.shared.push_back(
          {first[at]->name, name, first[at]->dtype, whole_shape(side, tensors, at, name)});
    }
  }
  return result;
}

void check_lists(const End& one_end, const std::vector<EndTensors::One>& one, const End& other_end,
                 const std::vector<EndTensors::One>& other) {
  if (one.size() != other.size()) {
    refuse(fmt::format("pair \"{}\": \"{}\" has registered {} tensors, \"{}\" {}", one_end.pair,
                       one_end.side, one.size(), other_end.side, other.size()));
  }
  for (std::size_t at = 0; at < one.size(); ++at) {
    if (one[at].name != other[at].name) {
      refuse(fmt::format("pair \"{}\": \"{}\" has a tensor named \"{}\" where \"{}\" has \"{}\"",
                         one_end.pair, one_end.side, one[at].name, other_end.side, other[at].name));
    }
    if (one[at].shape != other[at].shape) {
      refuse(fmt::format("{} has the shape {} at \"{}\" and {} at \"{}\"", one[at].label,
                         to_string(one[at].shape), one_end.side, to_string(other[at].shape),
                         other_end.side));
    }
    if (!castable(one[at].dtype, other[at].dtype)) {
      refuse(fmt::format("{}: {} at \"{}\" and {} at \"{}\" do not convert into each other",
                         one[at].label, to_string(one[at].dtype), one_end.side,
                         to_string(other[at].dtype), other_end.side));
    }
  }
}

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

}  // namespace

std::vector<End> remote_ends(const BatchMember& member) {
  std::vector<End> ends;
  for (std::size_t at = 0; at < member.ends.size(); ++at) {
    ends.push_back({member.ends[at].pair, member.remotes[at]});
  }
  return ends;
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
        throw FailedElsewhere(
            Code::invalid_argument,
            fmt::format("batch \"{}\": rank {} failed: {}", batch, rank, member->failed));
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
    const EndTensors ours = tensors_of(one, side);
    const EndTensors theirs = tensors_of(other, *facing);
    if (side.layout) {
      check_lists(end, ours.shared, facing->end, theirs.shared);
      continue;
    }
    for (std::size_t at = 0; at < side.ranks.size(); ++at) {
      check_lists(end, ours.of(side.ranks[at]), facing->end, theirs.of(facing->ranks[at]));
    }
  }
}

Status may_send(const Group& sources, const Group& targets) {
  for (const auto& [end, side] : targets.sides) {
    if (side_in(sources, end.pair) == nullptr || !side.partial()) continue;
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
    const EndTensors ours = tensors_of(sources, side);
    EndTensors theirs;
    Rank source = side.ranks.front();
    if (takes_part) {
      theirs = tensors_of(targets, *facing);
      if (!side.layout) source = side.ranks.at(index_in(*facing, reader));
    }
    const Layout from = side.layout ? *side.layout : alone(source);
    Layout to = alone(nobody);
    plan::Hosts hosts;
    if (takes_part && side.layout) {
      to = *facing->layout;
      hosts = {side.hosts, facing->hosts};
    } else if (takes_part) {
      to = alone(reader);
    }
    const plan::Tables tables(from, to, hosts);
    text += fmt::format("{}>{}[{}>{}]", to_string(from), to_string(to),
                        fmt::join(hosts.source, ","), fmt::join(hosts.target, ","));
    const auto& have = ours.of(source);
    for (std::size_t at = 0; at < have.size(); ++at) {
      const Dtype target = takes_part ? theirs.of(reader).at(at).dtype : have[at].dtype;
      passage.plans.emplace_back(tables, have[at].shape, plan::Types{have[at].dtype, target});
      text += fmt::format("{}{}:{};", to_string(have[at].dtype), to_string(have[at].shape),
                          to_string(target));
    }
  }
  passage.fingerprint = XXH3_64bits(text.data(), text.size());
  return passage;
}

std::vector<std::optional<std::size_t>> item_order(const Group& sources,
                                                   const BatchMember& member) {
  std::vector<std::optional<std::size_t>> order;
  for (const auto& [end, side] : sources.sides) {
    const auto own = std::ranges::find(member.ends, end.pair, &End::pair);
    if (own != member.ends.end()) {
      for (const std::size_t at : items_of(member, *own)) order.emplace_back(at);
      continue;
    }
    const auto count = items_of(*sources.members.at(side.ranks.front()), end).size();
    order.insert(order.end(), count, std::nullopt);
  }
  return order;
}

std::vector<Rank> readers_of(const Group& sources, const Group& targets, Rank source) {
  // Readers with a part in the same pairs have the same plans, unless ranks face each other.
  std::map<std::vector<std::string>, std::vector<Rank>> alike;
  for (const auto& [reader, member] : targets.members) {
    std::vector<std::string> pairs;
    for (const auto& [end, side] : targets.sides) {
      if (std::ranges::find(side.ranks, reader) == side.ranks.end()) continue;
      pairs.push_back(end.pair);
      if (!side.layout) pairs.push_back(std::to_string(reader));
    }
    alike[std::move(pairs)].push_back(reader);
  }
  std::set<Rank> readers;
  for (const auto& [pairs, ranks] : alike) {
    const Passage passage = make_passage(sources, targets, ranks.front());
    for (const plan::Stream& stream : plan::serve_streams(passage.plans, source)) {
      if (std::ranges::find(ranks, stream.reader) != ranks.end()) readers.insert(stream.reader);
    }
  }
  return {readers.begin(), readers.end()};
}

}  // namespace tensorbus::bus
