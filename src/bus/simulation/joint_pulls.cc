#include "bus/simulation/joint_pulls.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorbus::bus::simulation {

void JointPulls::begin(const std::string& side, Rank rank, std::uint64_t now) {
  sides_[side][rank].push_back({now});
}

void JointPulls::end(const std::string& side, Rank rank, std::uint64_t now,
                     std::optional<Result> result) {
  Entries& entries = sides_[side][rank];
  if (entries.empty() || entries.back().ended) return;
  entries.back().ended = now;
  entries.back().result = result;
}

// A pull of the other rank at that time that returned the same, or failed alone.
bool JointPulls::has_partner(const Entry& one, const Entries& others) {
  return std::ranges::any_of(others, [&](const Entry& other) {
    return one.overlaps(other) && (!other.result || other.result == one.result);
  });
}

std::string JointPulls::divergence() const {
  for (const auto& [side, ranks] : sides_) {
    for (const auto& [rank, entries] : ranks) {
      for (const Entry& entry : entries) {
        if (!entry.result) continue;
        const auto lonely = std::ranges::find_if(
            ranks, [&](const auto& other) { return !has_partner(entry, other.second); });
        if (lonely == ranks.end()) continue;
        return fmt::format("rank {} of {} pulled version {} of generation {}, and rank {} did not",
                           rank, side, entry.result->second, entry.result->first, lonely->first);
      }
    }
  }
  return "";
}

}  // namespace tensorbus::bus::simulation
