// The commands that a client has submitted, until it knows what came of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "bus/channel/channel.h"
#include "bus/channel/pending_command.h"
#include "bus/socket/protocol.h"

namespace tensorbus::bus {

struct Submitted {
  enum class State : std::uint8_t { submitted, accepted, refused };

  Command command;
  std::shared_ptr<Loan> loan;
  Deadline deadline = Deadline::never();
  bool quiet = false;          // the agent says nothing before the outcome
  std::uint64_t sequence = 0;  // with the agent that there is now
  std::shared_ptr<PendingCommand> pending;
  State state = State::submitted;
  Status refusal;
  bool abandoned = false;  // nobody waits for its acceptance: cancel it then
  bool closed = false;  // a registration that was closed since: not made again with another agent
};
using SubmittedPtr = std::shared_ptr<Submitted>;

// Knows no socket and no thread: the connection that owns these commands has the mutex.
class SubmittedCommands {
 public:
  // Commands that are over, to be completed without the mutex: what runs when a command completes
  // may submit again.
  using Over = std::vector<std::pair<std::shared_ptr<PendingCommand>, Outcome>>;

  bool empty() const noexcept { return entries_.empty(); }
  bool contains(std::uint64_t sequence) const { return entries_.contains(sequence); }
  SubmittedPtr find(std::uint64_t sequence) const;
  SubmittedPtr find(const Pending& pending) const;

  // Under the next number.
  void enter(const SubmittedPtr& entry);
  void erase(std::uint64_t sequence) { entries_.erase(sequence); }
  void refuse(Submitted& entry, const Status& reason);
  // A registration that is closed, also one that is just being made again with an agent that has
  // come back.
  void forget(std::uint64_t registration);

  void take(const protocol::Refused& refused, Over& over);
  void take(protocol::Done& done, Over& over);
  void take(const protocol::Progress& progress);

  // Takes out what an agent that has ended had accepted, as it said or as its journal says.
  std::vector<SubmittedPtr> take_accepted(std::uint64_t last_accepted);
  // What the agent that comes next is to be sent, in this order: the registrations, then what no
  // agent has accepted.
  std::vector<SubmittedPtr> start_again(std::uint64_t last_accepted);
  // The client is closed: takes out everything, and refuses what was not accepted.
  std::vector<SubmittedPtr> close(const Status& reason);

 private:
  struct Registration {
    Command command;
    std::shared_ptr<Loan> loan;
  };
  void remember(const Submitted& entry, const Outcome& outcome);

  std::uint64_t sequence_ = 0;
  std::map<std::uint64_t, SubmittedPtr> entries_;
  std::map<std::uint64_t, Registration> registrations_;
};

}  // namespace tensorbus::bus
