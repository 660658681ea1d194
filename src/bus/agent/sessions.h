// The sessions of an agent's workers, and the incarnation by which other ranks know each.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace tensorbus::bus {

class Sessions {
 public:
  explicit Sessions(std::function<std::uint64_t()> random) : random_(std::move(random)) {}

  bool knows(std::uint64_t session) const { return incarnations_.contains(session); }
  // A session that is new gets an incarnation.
  std::uint64_t incarnation(std::uint64_t session) {
    const auto [at, fresh] = incarnations_.try_emplace(session);
    if (fresh) at->second = random_();
    return at->second;
  }
  void forget(std::uint64_t session) { incarnations_.erase(session); }
  // The agent counts as another from now on, and its workers with it.
  void renew() {
    for (auto& [session, incarnation] : incarnations_) incarnation = random_();
  }
  std::vector<std::uint64_t> all() const {
    std::vector<std::uint64_t> sessions;
    for (const auto& [session, incarnation] : incarnations_) sessions.push_back(session);
    return sessions;
  }

 private:
  const std::function<std::uint64_t()> random_;
  std::map<std::uint64_t, std::uint64_t> incarnations_;
};

}  // namespace tensorbus::bus
