// The agent of one rank: takes commands from its workers, finds the other agents in the store and
// moves tensors with them. One thread owns it; step() never waits.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bus/agent/content_queries.h"
#include "bus/batch/batch.h"
#include "bus/channel/channel.h"
#include "bus/directory/catalog.h"
#include "bus/directory/directory.h"
#include "bus/files/state.h"
#include "bus/match/pair.h"
#include "bus/round/context.h"
#include "bus/round/peer_connections.h"
#include "bus/shelf/shelves.h"
#include "fabric/core/fabric.h"

namespace tensorbus::bus {

// What an agent is given; all of it outlives the agent, none of it is shared with another.
struct AgentParts {
  fabric::Fabric& fabric;
  Channel& channel;
  Directory& directory;
  StateStore& state;
  std::function<std::uint64_t()> random;        // incarnations, serials
  std::string secret;                           // what the fabrics of all agents know
  std::function<void(Step)> reached = nullptr;  // told of every step
};

struct AgentOptions {
  Rank rank = 0;
  std::string space = "default";  // the namespace, for messages and the heartbeat
};

class Agent {
 public:
  Agent(AgentParts parts, AgentOptions options);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Does what there is to do now. A failure of one command does not leave step(); an exception that
  // does is the end of the agent: fail(), and no further call.
  void step(TimePoint now);
  // Ends every command, with this reason.
  void fail(const Status& why) noexcept;

  // To sleep: arm(); if true wait until one of fds() is readable or wake_at() has come.
  bool arm();
  std::array<int, 3> fds() const noexcept;
  TimePoint wake_at() const;

  // Withdraws what the agent has published and ends all commands as cancelled; step() until over().
  void close();
  bool over() const;

  Rank rank() const noexcept { return context_.rank; }

 private:
  struct PairHere {
    InitPair pair;
    std::set<std::uint64_t> sessions;
    std::uint64_t session = 0;  // who asked last
    std::uint64_t attempt = 0;  // 0: nothing is published
    bool established = false;   // both sides were complete
    bool lasts = false;         // were so once: the record stays when a later wait ends
    KnownFailures known;
    std::vector<std::pair<CommandId, Deadline>> waiting;
  };
  struct Held {
    PeerConnectionPtr connection;
    AgentMessage message;
  };

  // agent.cc
  void take(const ChannelEvent& event);
  void take(const fabric::Event& event);
  void take(const DirectoryEvent& event);
  void dispatch(const Submission& submission);
  void cancel(CommandId id, const Status& reason);
  void begin_session(std::uint64_t session);
  void answer(CommandId id, const Status& status = {});
  void take_message(const fabric::Message& message);
  void peer_lost(const fabric::PeerLost& lost);
  void take_subscribe(const PeerConnectionPtr& connection, const AgentMessage& message);
  void retry_subscribes();
  void beat();
  void write_state();
  void forget(const std::string& key) noexcept;
  void end_session(std::uint64_t session, const Status& why, Batch::Manner manner);
  void update_batches(const std::set<std::string>& changed);
  void announce_batches();
  std::uint64_t incarnation(std::uint64_t session);
  void lease_lost();
  void record_changed(const Changed& changed);
  void record_refused(const Refused& refused);
  void store_reached(const Status& status);
  void publish_self();
  void look_at_self(const std::optional<std::string>& value);
  // The fabric lets those agents in that are in the directory.
  void admit(const Changed& changed);
  // commands.cc
  void init_pair(const Submission& submission, const InitPair& pair);
  void register_batch(const Submission& submission, const RegisterBatch& command);
  static void check_loan(const Submission& submission, const RegisterBatch& command);
  // Nothing: a pair that the command names is not ready yet.
  std::optional<BatchMember> record_of(const Submission& submission, const RegisterBatch& command);
  void refuse_batch(const Submission& submission, const RegisterBatch& command, BatchMember record,
                    const std::string& side);
  void replace_memory(const Submission& submission, Batch& batch, const BatchMember& record);
  void transfer(const Submission& submission, const Transfer& command);
  void publish(const Submission& submission, const Publish& command);
  void shelve(const Submission& submission, const Shelve& command);
  void pull(const Submission& submission, const Pull& command);
  void query_newest(const Submission& submission, const QueryNewest& command);
  void query(const Submission& submission, const QuerySignal& command);
  void query_versions(const Submission& submission, const QueryVersions& command);
  void close_batch(const Submission& submission, const CloseBatch& command);
  void assess_pair(const End& end);
  void publish(const PairHere& here, const std::string& failed);
  void fail_pair(const End& end, const Status& why, bool tell);
  void end_waiting(PairHere& here);
  void drop_pair(const End& end, std::uint64_t session);
  // Publishes again what a client that is back had asked an earlier agent for.
  void restore(std::uint64_t session);
  Batch& find_batch(const std::string& batch, const std::optional<std::string>& role);
  End local_end(const std::string& pair, const std::optional<std::string>& role) const;

  AgentParts parts_;
  AgentOptions options_;
  PeerConnections connections_;
  Operations operations_;
  Catalog catalog_;
  Context context_;
  Shelves shelves_;
  ContentQueries content_queries_;

  std::map<std::uint64_t, std::uint64_t> sessions_;  // and their incarnations
  std::map<End, PairHere> pairs_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Batch>> batches_;  // id, side
  std::vector<std::unique_ptr<Batch>> ending_;  // replaced or closed, not over yet
  std::map<std::pair<std::string, std::string>, KnownFailures> disputed_;  // by those that failed
  // Batches that were refused, and by whom: their records go with the session.
  std::map<std::pair<std::string, std::string>, std::uint64_t> refused_;
  std::vector<Submission> deferred_;  // name a pair that is not ready yet
  std::vector<Held> held_;            // subscriptions that cannot be answered yet
  std::set<std::string> changed_;     // batches whose records changed
  bool changed_pairs_ = false;
  const std::uint64_t incarnation_;
  bool seen_self_ = false;
  Status replaced_;  // another agent has this rank now
  TimePoint next_beat_{};
  std::set<std::string> forgotten_;  // keys of the state that are to be erased
  bool cannot_write_ = false;
  bool closing_ = false;
};

}  // namespace tensorbus::bus
