// One registration of a batch at this agent. A registration has these parts: matching (which
// registrations there are, and whether they fit), generations (with whom the registration counts
// its rounds), exchange (its commands and its two ends), the command that registers it, and what
// generations mean for its ends. Here is what one part means for the others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bus/batch/exchange.h"
#include "bus/batch/following.h"
#include "bus/batch/registering.h"
#include "bus/registration/generations.h"
#include "bus/registration/matching.h"
#include "bus/registration/own_registration.h"

namespace tensorbus::bus {

class Batch {
 public:
  // `disputed`: registrations of others that an earlier one of this rank did not fit.
  Batch(Context& context, Shelves& shelves, BatchKey key, std::uint64_t session, BatchMember record,
        std::shared_ptr<Loan> loan, KnownFailures disputed = {});
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const OwnRegistration& self() const noexcept { return self_; }
  // If this registration failed: the registrations that it did not fit.
  const KnownFailures& disputed() const noexcept { return matching_.disputed(); }
  // Queries, and what connections tell.
  Exchange& exchange() noexcept { return exchange_; }
  // Nothing of the registration is left to wait for.
  bool over() const noexcept;
  // What the head of the queue waits for; for the heartbeat.
  std::string current() const;
  Awaited awaited();

  void register_for(CommandId id, Deadline deadline) { registering_.begin(id, deadline); }
  // Shows the registration to the others; the agent waits with it until an earlier one of the same
  // name has left.
  void announce();
  // Other memory to receive into, or to send from: not while the batch registers or closes, or a
  // command waits, or if readers have come that want other types.
  enum class Replaced : std::uint8_t { yes, busy, unsuitable };
  Replaced replace(std::shared_ptr<Loan> loan, std::vector<bool> staged);
  // The agent counts as another from now on.
  void publish_as(std::uint64_t incarnation);
  // Nothing happens to a batch that is registered. `tell`: the other ranks do not know of the
  // failure yet.
  void fail_registration(const Status& why, bool tell);
  void transfer(CommandId id, const Transfer& transfer, Deadline deadline);
  void publish(CommandId id, const Publish& publish, Deadline deadline);
  void shelve(CommandId id, const Shelve& shelve);
  void pull(CommandId id, const Pull& pull, Deadline deadline);
  void ask_newest(CommandId id);
  // False: the batch has no such command.
  bool cancel(CommandId id, const Status& why);
  // Ends everything; over() says when. The command `id` is completed then. Rounds that this rank
  // has been answered for go on at the others, unless its worker is lost. Back soon: readers that
  // wait for a version of the shelf go on waiting.
  enum class Manner : std::uint8_t { orderly, back_soon, lost };
  void close(std::optional<CommandId> id, const Status& why, Manner manner = Manner::orderly);
  // Another registration takes the name: the record in the store is no longer that of this
  // registration.
  void give_way() noexcept { superseded_ = true; }

  bool is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const {
    return exchange_.is_for(connection, message);
  }
  // SUBSCRIBE or FOLLOW.
  Taken take(const PeerConnectionPtr& connection, const AgentMessage& message);
  // Records have changed, or time has passed.
  void update();
  void step();
  TimePoint wake_at() const;

 private:
  void look_at_groups();
  void follow_leaving();
  void withdraw();
  // The record was withdrawn, but the store has not said so yet.
  bool is_still_seen() const noexcept;
  Status refuses(Direction direction, bool shelved) const;
  void expire_registration();

  OwnRegistration self_;
  Matching matching_;
  Generations generations_;
  Exchange exchange_;
  Registering registering_;
  Following following_;
  // The command that is answered when nothing of the batch is left, and how: the batch was closed,
  // or did not register in time. A worker that hears the answer and tells another rank must not be
  // contradicted by the store.
  std::optional<std::pair<CommandId, Status>> last_command_;
  TimePoint withdrawn_by_ = TimePoint::min();  // at the latest
  Status misfit_;  // why this registration cannot pull what is published now
  bool superseded_ = false;
};

}  // namespace tensorbus::bus
