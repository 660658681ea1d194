#include "bus/simulation/joint_pulls.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorbus::bus::simulation {

void JointPulls::begin(const std::string& side, Rank rank, std::uint64_t now) {
  sides_[side][rank].push_back({now});
}

void JointPulls::end(const std::string& side, Rank rank, std::uint64_t now,
                     std::optional<Result> result) {
  Pulls& pulls = sides_[side][rank];
  if (pulls.empty() || pulls.back().ended) return;
  pulls.back().ended = now;
  pulls.back().result = result;
}

// A pull of the other rank at that time that returned the same, or failed alone.
bool JointPulls::has_partner(const OnePull& one, const Pulls& others) {
  return std::ranges::any_of(others, [&](const OnePull& other) {
    return one.overlaps(other) && (!other.result || other.result == one.result);
  });
}

std::string JointPulls::divergence() const {
  for (const auto& [side, ranks] : sides_) {
    for (const auto& [rank, pulls] : ranks) {
      for (const OnePull& pull : pulls) {
        if (!pull.result) continue;
        const auto lonely = std::ranges::find_if(
            ranks, [&](const auto& other) { return !has_partner(pull, other.second); });
        if (lonely == ranks.end()) continue;
        return fmt::format("rank {} of {} pulled version {} of generation {}, and rank {} did not",
                           rank, side, pull.result->second, pull.result->first, lonely->first);
      }
    }
  }
  return "";
}

}  // namespace tensorbus::bus::simulation
