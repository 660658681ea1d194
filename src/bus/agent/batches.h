// The registrations of one agent, by batch and side: those that are there, those that wait for
// their pair, and those that have given way and are not over yet.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bus/agent/list_keeper.h"
#include "bus/agent/pairs.h"
#include "bus/agent/registering_record.h"
#include "bus/agent/sessions.h"
#include "bus/batch/batch.h"
#include "bus/registration/routes.h"
#include "bus/shelf/shelves.h"

namespace tensorbus::bus {

class Batches {
 public:
  Batches(Context& context, Shelves& shelves, Sessions& sessions, Pairs& pairs)
      : context_(context), shelves_(shelves), sessions_(sessions), pairs_(pairs) {}
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  // Throws Error; a registration whose pair is not complete waits for it.
  void add(const Submission& submission, const RegisterBatch& command);
  // `role`: the local name that is meant. Throws Error(invalid_argument).
  Batch& find(const std::string& batch, const std::optional<std::string>& role);
  void close(const Submission& submission, const CloseBatch& command);
  // False: none of these batches has such a command.
  bool cancel(CommandId id, const Status& reason);
  void end_session(std::uint64_t session, const Status& why, Batch::Manner manner);
  // The store does not take what others must know of it.
  void refused(const BatchKey& key, const Status& why);
  void refused(const ListHash& list, const Status& why);
  // The records of this rank that others see, but for those that failed.
  std::vector<ListKeeper::Use> list_uses() const;
  // The agent counts as another from now on.
  void renew();
  bool over() const noexcept { return batches_.empty() && ending_.empty(); }
  // What a command waits for; for the heartbeat.
  std::string current() const;
  // What the first command of a batch waits for; without a role, of any registration of the batch.
  Awaited awaited(const std::string& batch, const std::string& role);

  // Records of a batch have changed: looked at in the next step.
  void note_change(const std::string& batch) { changed_.insert(batch); }
  void note_all_changed();
  // The same, at once, with the registrations of this moment.
  void update(const std::set<std::string>& changed);
  // Pairs may be complete that were not.
  void look_at_pairs();
  void update_changed();
  void expire();
  void step();
  TimePoint wake_at() const;

  // SUBSCRIBE or FOLLOW; the message is kept until it can be answered.
  void take(const PeerConnectionPtr& connection, const AgentMessage& message);
  // False: the message is for none of these batches.
  bool on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_up(const PeerConnectionPtr& connection);
  void on_lost(const PeerConnectionPtr& connection, const Status& why);

 private:
  using Name = std::pair<std::string, std::string>;  // batch and side
  struct Held {
    PeerConnectionPtr connection;
    AgentMessage message;
  };

  void refuse_registration(const Submission& submission, const RegisterBatch& command,
                           RegisteringRecord made);
  void put(const Submission& submission, const RegisterBatch& command, RegisteringRecord made);
  void replace_memory(const Submission& submission, Batch& batch, const RegisterBatch& command,
                      const BatchMember& record);
  // The batch's name is free from now on; its memory comes back when the batch is over.
  void give_way(std::unique_ptr<Batch> batch, const Status& why);
  void remove_ended();
  void announce();

  Context& context_;
  Shelves& shelves_;
  Sessions& sessions_;
  Pairs& pairs_;
  std::map<Name, std::unique_ptr<Batch>> batches_;
  Routes<Batch> routes_;
  std::vector<std::unique_ptr<Batch>> ending_;  // replaced or closed, not over yet
  std::map<Name, KnownFailures> disputed_;      // by registrations that failed
  // Batches that a worker refused, and the worker's session: the records of the batches go with the
  // session.
  std::map<Name, std::uint64_t> refused_;
  std::vector<Submission> deferred_;  // name a pair that is not ready yet
  std::vector<Held> held_;            // subscriptions that cannot be answered yet
  std::set<std::string> changed_;     // batches whose records changed
};

}  // namespace tensorbus::bus
