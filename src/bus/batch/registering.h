// The command that registers a batch: the agent answers it when the other ranks have registered
// theirs, and know of this registration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bus/batch/exchange.h"
#include "bus/registration/awaited.h"
#include "bus/registration/generations.h"
#include "bus/registration/matching.h"
#include "bus/registration/own_registration.h"

namespace tensorbus::bus {

class Registering {
 public:
  Registering(OwnRegistration& self, Matching& matching, Generations& generations,
              Exchange& exchange)
      : self_(self), matching_(matching), generations_(generations), exchange_(exchange) {}

  void begin(CommandId id, Deadline deadline);
  bool waits() const noexcept { return command_.has_value(); }
  bool waits_for(CommandId id) const noexcept { return command_ && command_->id == id; }
  TimePoint deadline() const noexcept {
    return command_ ? command_->deadline.at() : TimePoint::max();
  }
  // Answers the command if there is nothing left to wait for.
  void check();
  // What the command still waits for, as an error, when it is late.
  std::optional<Status> lateness();
  // What it waits for now.
  Awaited awaited();
  void end(const Status& status);
  // Ends the command without an answer.
  CommandId take();

 private:
  struct Command {
    CommandId id;
    Deadline deadline;
  };

  std::string missing();
  bool meets_others();
  bool has_shelf();
  bool has_joined();
  bool has_readers();
  bool is_missing(Rank reader) const;
  std::vector<Rank> unsubscribed() const;

  OwnRegistration& self_;
  Matching& matching_;
  Generations& generations_;
  Exchange& exchange_;
  std::optional<Command> command_;
  bool waits_for_readers_ = false;  // and for nothing else
};

}  // namespace tensorbus::bus
