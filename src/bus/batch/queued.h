// A send or recv that was accepted and is not over.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "bus/channel/command.h"
#include "bus/registration/telling_time.h"
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
  TellingTime telling{};
};

}  // namespace tensorbus::bus
