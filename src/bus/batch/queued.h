// A send or recv that was accepted and is not over.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "bus/channel/command.h"
#include "tensorbus/deadline.h"

namespace tensorbus::bus {

struct Queued {
  CommandId id;
  Direction direction = Direction::send;
  std::uint64_t ticket = 0;
  Deadline deadline;
  std::int64_t round = 0;                                // send
  std::optional<std::int64_t> version{};                 // send: its own; recv: the one wanted
  bool named = false;                                    // send: by the user
  std::int64_t min_readers = 0;                          // send: before it begins
  std::optional<std::map<Rank, ReaderOutcome>> ended{};  // send: as far as this rank's readers go
  bool running = false;                                  // send: its round is open
  Status why{};                                          // what has ended it early
  TimePoint tell_progress_at = TimePoint::min();         // min before it began

  // Whether the worker is to be told now how far the transfer is. For people who look at it: a
  // transfer that is over sooner says so at its end.
  bool time_to_tell(TimePoint now) noexcept {
    constexpr Duration progress_every = std::chrono::milliseconds(20);
    if (now < tell_progress_at) return false;
    const bool began = tell_progress_at != TimePoint::min();
    tell_progress_at = now + progress_every;
    return began;
  }
};

}  // namespace tensorbus::bus
