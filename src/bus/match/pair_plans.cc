#include "bus/match/pair_plans.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tensorbus::bus {
namespace {

using tensorbus::to_string;

std::vector<Rank> ranks_of(const plan::Spread& spread) {
  if (const auto* layout = std::get_if<Layout>(&spread)) return layout->mesh().ranks();
  std::vector<Rank> ranks;
  for (const auto& [rank, boxes] : std::get<plan::Boxes>(spread)) ranks.push_back(rank);
  return ranks;
}

std::vector<std::string> hosts_of(const plan::Spread& spread, const Side& side) {
  std::vector<std::string> hosts;
  for (const Rank rank : ranks_of(spread)) {
    const auto place = std::ranges::find(side.ranks, rank) - side.ranks.begin();
    hosts.push_back(side.hosts.at(static_cast<std::size_t>(place)));
  }
  return hosts;
}

std::string to_text(const plan::Spread& spread) {
  if (const auto* layout = std::get_if<Layout>(&spread)) return to_string(*layout);
  std::string text;
  for (const auto& [rank, boxes] : std::get<plan::Boxes>(spread)) {
    text += fmt::format("{}:", rank);
    for (const plan::Box& box : boxes) {
      text += fmt::format("{}+{},", to_string(box.start), to_string(box.shape));
    }
  }
  return text;
}

}  // namespace

const PairPlans::Known& PairPlans::between(const SideTensor& from, const plan::Spread& to) {
  for (const Known& each : known_) {
    if (each.shape && *each.shape != from.shape) continue;
    if (each.from == from.spread && each.to == to) return each;
  }
  plan::Hosts hosts;
  if (facing_ != nullptr) hosts = {hosts_of(from.spread, side_), hosts_of(to, *facing_)};
  known_text_ += fmt::format("{}>{}[{}>{}]", to_text(from.spread), to_text(to),
                             fmt::join(hosts.source, ","), fmt::join(hosts.target, ","));
  const auto* source = std::get_if<Layout>(&from.spread);
  const auto* target = std::get_if<Layout>(&to);
  if (source != nullptr && target != nullptr) {
    known_.push_back(
        {known_.size(), from.spread, to, std::nullopt, plan::Tables(*source, *target, hosts)});
  } else {
    known_.push_back({known_.size(), from.spread, to, from.shape,
                      plan::Holdings(from.spread, to, from.shape, hosts)});
  }
  return known_.back();
}

plan::Plan PairPlans::make(const SideTensor& from, const plan::Spread& to, Dtype type) {
  const Known& known = between(from, to);
  plans_ += fmt::format("{}:{}{}:{};", known.number, to_string(from.dtype), to_string(from.shape),
                        to_string(type));
  const plan::Types types{from.dtype, type};
  if (const auto* tables = std::get_if<plan::Tables>(&known.how)) {
    return plan::Plan(*tables, from.shape, types);
  }
  return plan::Plan(std::get<plan::Holdings>(known.how), types);
}

const plan::Holdings* PairPlans::holdings(const SideTensor& from, const plan::Spread& to) {
  return std::get_if<plan::Holdings>(&between(from, to).how);
}

}  // namespace tensorbus::bus
