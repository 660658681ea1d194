#include "bus/registration/senders.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorbus::bus {

const Sender* place_in(const Generation* generation, Rank rank, const BatchMember& member) {
  if (generation == nullptr) return nullptr;
  const auto found = generation->senders.find(rank);
  const bool here =
      found != generation->senders.end() && found->second.registration == member.registration;
  return here ? &found->second : nullptr;
}

std::string is_gone(Rank rank) {
  return fmt::format("sender rank {} is gone or registers again", rank);
}

bool is_of(const Group& group, const Generation& generation) {
  return std::ranges::all_of(group.members, [&](const auto& entry) {
    const auto sender = generation.senders.find(entry.first);
    return sender != generation.senders.end() &&
           sender->second == Sender{entry.second->incarnation, entry.second->registration};
  });
}

bool is_mixed(const Group& group, const Generation* last) {
  if (last == nullptr) return false;
  const auto was_there = [&](const auto& entry) {
    return place_in(last, entry.first, *entry.second) != nullptr;
  };
  const auto count = std::ranges::count_if(group.members, was_there);
  return count != 0 && static_cast<std::size_t>(count) != group.members.size();
}

bool is_fresh(const Group& group, const Generation* last) {
  if (last == nullptr) return true;
  return std::ranges::none_of(group.members, [&](const auto& entry) {
    return place_in(last, entry.first, *entry.second) != nullptr;
  });
}

bool fit_together(const Group& group) {
  try {
    for (const auto& [end, side] : group.sides) group.tensors(side);
    return true;
  } catch (const Error&) {
    return false;  // Matching says so to the ranks that it concerns
  }
}

}  // namespace tensorbus::bus
