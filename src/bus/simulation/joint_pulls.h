// The pulls that users of one side make together, as the users see them, and whether any two of one
// joint pull returned different versions. Times are in steps of the world.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorbus/layout.h"

namespace tensorbus::bus::simulation {

class JointPulls {
 public:
  using Result = std::pair<std::int64_t, std::int64_t>;  // generation and version

  void begin(const std::string& side, Rank rank, std::uint64_t now);
  // Ends the last pull of this rank; nothing happens if that pull is over. No result: the pull
  // failed.
  void end(const std::string& side, Rank rank, std::uint64_t now, std::optional<Result> result);
  // What broke I27; empty: nothing.
  std::string divergence() const;

 private:
  struct OnePull {
    std::uint64_t begun = 0;
    std::optional<std::uint64_t> ended{};
    std::optional<Result> result{};

    bool overlaps(const OnePull& other) const noexcept {
      return (!ended || *ended >= other.begun) && (!other.ended || *other.ended >= begun);
    }
  };
  using Pulls = std::vector<OnePull>;

  static bool has_partner(const OnePull& one, const Pulls& others);

  std::map<std::string, std::map<Rank, Pulls>> sides_;
};

}  // namespace tensorbus::bus::simulation
