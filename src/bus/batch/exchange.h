// The commands of a registration that move its tensors, in the order in which they were submitted,
// and the ends that carry them out: of rounds, or of a shelf.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "bus/batch/queries.h"
#include "bus/batch/queued.h"
#include "bus/batch/receiving.h"
#include "bus/batch/sending.h"
#include "bus/registration/own_registration.h"
#include "bus/shelf/publishing.h"
#include "bus/shelf/pulling.h"

namespace tensorbus::bus {

class Exchange {
 public:
  Exchange(OwnRegistration& self, Shelves& shelves)
      : self_(self),
        sending_(self),
        receiving_(self),
        queries_(self, sending_, receiving_),
        publishing_(self, shelves),
        pulling_(self) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Sending& sending() noexcept { return sending_; }
  Receiving& receiving() noexcept { return receiving_; }
  Queries& queries() noexcept { return queries_; }
  Publishing& publishing() noexcept { return publishing_; }
  Pulling& pulling() noexcept { return pulling_; }
  // The memory of the registration is borrowed for a read that runs.
  bool reads() const noexcept { return receiving_.running() != nullptr || pulling_.reads(); }

  void accept(CommandId id, const Transfer& transfer, Deadline deadline);
  // False: there is no such command here.
  bool cancel(CommandId id, const Status& why);
  bool empty() const { return head().empty(); }
  bool has(Direction direction) const noexcept;
  // "send", for messages; empty if no command waits.
  std::string head() const;
  // What the first command waits for.
  Awaited awaited() const;
  // The last round that this rank's sends have been answered for.
  std::int64_t answered() const noexcept;

  void begin_generation(const Generation& generation, const GroupPtr& group);
  // Rounds after the last one that goes on fail with this.
  void end_generation(const Generation& ended, const Status& why);
  // The generation has ended, and this rank is through with the rounds that went on.
  void drop_source_if_unused();
  // Commands that wait, and sends only from the round after `after` on.
  void fail(Direction direction, const Status& why, std::optional<Rank> lost,
            std::int64_t after = 0);
  // Ends everything but a recv that runs: the recv ends when its memory is free again.
  void close(const Status& why, Publishing::Parting parting);

  // Moves the queue.
  void step();
  // What is to be done whatever waits in the queue.
  void rest();
  // There is work that need not wait for anybody.
  bool busy() const;
  TimePoint wake_at() const;

  // Whether the message is of a subscription that this registration has, at either end.
  bool is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const;
  void on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_up(const PeerConnectionPtr& connection);
  void on_lost(const PeerConnectionPtr& connection, const Status& why);

 private:
  void step_head();
  void finish_head(Outcome outcome);
  void end_command(Queued& queued, const Status& why, bool at_deadline);
  void expire();

  OwnRegistration& self_;
  Sending sending_;
  Receiving receiving_;
  Queries queries_;
  Publishing publishing_;
  Pulling pulling_;
  std::deque<Queued> queue_;
};

}  // namespace tensorbus::bus
