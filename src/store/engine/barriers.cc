#include "store/engine/barriers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace tensorbus::store {
namespace {

constexpr std::size_t most_members_named = 16;

std::string list_of(std::vector<std::string> names) {
  const std::size_t all = names.size();
  names.resize(std::min(all, most_members_named));
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  return all > most_members_named ? text + ", ..." : text;
}

// The first ranks below `count` that did not arrive; nothing if the members are not all such ranks.
std::optional<std::vector<std::string>> absent_ranks(std::size_t count,
                                                     const std::vector<std::string>& members) {
  std::set<std::size_t> present;
  for (const std::string& member : members) {
    std::size_t rank = 0;
    const auto [end, failure] = std::from_chars(member.data(), member.data() + member.size(), rank);
    if (failure != std::errc() || end != member.data() + member.size() || rank >= count) {
      return std::nullopt;
    }
    present.insert(rank);
  }
  std::vector<std::string> absent;
  // No more than are named: the count is whatever a client says it is.
  for (std::size_t rank = 0; rank < count && absent.size() <= most_members_named; ++rank) {
    if (!present.contains(rank)) absent.push_back(std::to_string(rank));
  }
  return absent;
}

}  // namespace

std::string describe_arrivals(std::string_view name, std::size_t count,
                              std::vector<std::string> members) {
  if (name.starts_with('/')) name.remove_prefix(1);
  std::sort(members.begin(), members.end());
  std::string text = fmt::format("barrier \"{}\": {} of {} arrived: {}", name, members.size(),
                                 count, list_of(members));
  if (const auto absent = absent_ranks(count, members); absent && !absent->empty()) {
    text += fmt::format("; missing: rank {}", list_of(*absent));
  }
  return text;
}

std::vector<std::string> Barriers::names_of(const Barrier& barrier) {
  std::vector<std::string> names;
  for (const auto& [_, member] : barrier.members) names.push_back(member);
  return names;
}

std::vector<Ticket> Barriers::arrive(Ticket ticket, std::string_view name, std::size_t count,
                                     std::string_view member) {
  auto found = barriers_.find(name);
  if (found == barriers_.end()) {
    found = barriers_.emplace(name, Barrier{count, {}}).first;
  }
  Barrier& barrier = found->second;
  if (barrier.count != count) {
    throw Error(Code::invalid_argument,
                fmt::format("{}; a newcomer says that it is for {}",
                            describe_arrivals(name, barrier.count, names_of(barrier)), count));
  }
  barrier.members.emplace(ticket, member);
  if (barrier.members.size() < count) {
    place_.emplace(ticket, name);
    return {};
  }
  std::vector<Ticket> released;
  for (const auto& [waiting, _] : barrier.members) {
    if (waiting == ticket) continue;
    released.push_back(waiting);
    place_.erase(waiting);
  }
  released.push_back(ticket);
  barriers_.erase(found);
  return released;
}

std::optional<std::string> Barriers::withdraw(Ticket ticket) {
  const auto place = place_.find(ticket);
  if (place == place_.end()) return std::nullopt;
  const auto found = barriers_.find(place->second);
  Barrier& barrier = found->second;
  std::string text = describe_arrivals(found->first, barrier.count, names_of(barrier));
  barrier.members.erase(ticket);
  if (barrier.members.empty()) barriers_.erase(found);
  place_.erase(place);
  return text;
}

}  // namespace tensorbus::store
