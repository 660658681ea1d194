#include "bus/agent/own_state.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "bus/files/heartbeat.h"

namespace tensorbus::bus {
namespace {

constexpr Duration heartbeat_every = std::chrono::seconds(1);

}  // namespace

void OwnState::keep(const std::string& key, std::string_view value) {
  state_.put(key, value);
  forgotten_.erase(key);
}

void OwnState::forget(const std::string& key) noexcept try {
  state_.erase(key);
} catch (const std::exception&) {
  forgotten_.insert(key);
}

// A client that looks for the agent's signs of life finds an old one: no reason for the agent to
// end.
void OwnState::beat(TimePoint now, const std::string& current) {
  next_beat_ = now + heartbeat_every;
  try {
    write(current);
    if (std::exchange(cannot_write_, false))
      log::info("bus: rank {}: its state is written again", rank_);
  } catch (const std::exception& error) {
    if (std::exchange(cannot_write_, true)) return;
    log::error("bus: rank {} shows no heartbeat until that is over: {}", rank_, error.what());
  }
}

void OwnState::write(const std::string& current) {
  for (const std::string& key : std::set(forgotten_)) {
    state_.erase(key);
    forgotten_.erase(key);
  }
  state_.put("heartbeat", encode(Heartbeat{wall_clock_ns(), space_, current}));
}

}  // namespace tensorbus::bus
