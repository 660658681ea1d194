// What an agent keeps in its state: signs of life, and what the next agent must find again. An
// agent whose state cannot be written goes on.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "bus/files/state.h"
#include "tensorbus/deadline.h"
#include "tensorbus/layout.h"

namespace tensorbus::bus {

class OwnState {
 public:
  OwnState(StateStore& state, Rank rank, std::string space)
      : state_(state), rank_(rank), space_(std::move(space)) {}

  // Throws Error(failed) when the value cannot be kept.
  void keep(const std::string& key, std::string_view value);
  // The key is erased with the next heartbeat if the state cannot be written now.
  void forget(const std::string& key) noexcept;
  std::map<std::string, std::string> scan(const std::string& prefix) { return state_.scan(prefix); }

  // `current`: what the agent waits for.
  void beat(TimePoint now, const std::string& current);
  TimePoint next_beat() const noexcept { return next_beat_; }

 private:
  void write(const std::string& current);

  StateStore& state_;
  const Rank rank_;
  const std::string space_;
  std::set<std::string> forgotten_;  // keys that are still to be erased
  TimePoint next_beat_{};
  bool cannot_write_ = false;
};

}  // namespace tensorbus::bus
