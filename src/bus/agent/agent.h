// The agent of one rank: takes commands from its workers, finds the other agents in the store and
// moves tensors with them. One thread owns the agent; step() never waits.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "bus/agent/batches.h"
#include "bus/agent/content_queries.h"
#include "bus/agent/own_state.h"
#include "bus/agent/pairs.h"
#include "bus/agent/sessions.h"
#include "bus/channel/channel.h"
#include "bus/directory/catalog.h"
#include "bus/directory/directory.h"
#include "bus/files/state.h"
#include "bus/report/reporter.h"
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
  // Told how many agents this host has, whenever that changes; answers how many threads a copy of
  // this rank may take. May be empty.
  std::function<std::size_t(std::size_t agents_here)> copy_threads = nullptr;
  const Clock* clock = nullptr;  // to measure how long something takes; null: nothing is measured
  // The channel once more, if what goes through it is recorded.
  ObservedChannel* observed = nullptr;
};

struct AgentOptions {
  Rank rank = 0;
  std::string space = "default";      // the namespace, for messages and the heartbeat
  Duration retain = Duration::max();  // how long shelves stay that their worker has left
  ReporterOptions report{};           // of one that is observed
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
  // The same without the sleep before it. True: somebody else is about to answer what a worker
  // waits for, or a worker to ask again; not of what happens now and then.
  bool look(TimePoint now);
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
  void take(const ChannelEvent& event);
  void take(const fabric::Event& event);
  void take(const DirectoryEvent& event);
  void dispatch(const Submission& submission);
  void cancel(CommandId id, const Status& reason);
  void begin_session(std::uint64_t session);
  void end_session(std::uint64_t session, const Status& why, Batch::Manner manner);
  void take_message(const fabric::Message& message);
  void peer_lost(const fabric::PeerLost& lost);
  void lease_lost();
  void record_changed(const Changed& changed);
  void record_refused(const Refused& refused);
  void keep_lists();
  void store_reached(const Status& status);
  void publish_self();
  void look_at_self(const std::optional<std::string>& value);
  // The fabric lets those agents in that are in the directory.
  void admit(const Changed& changed);
  // The agents of one host share the cores of the host.
  void count_agent(const Changed& changed);
  void share_cores();
  void report(TimePoint now);

  AgentParts parts_;
  AgentOptions options_;
  PeerConnections connections_;
  Operations operations_;
  Catalog catalog_;
  Context context_;
  Shelves shelves_;
  Sessions sessions_;
  OwnState state_;
  Pairs pairs_;
  Batches batches_;
  ContentQueries content_queries_;
  ListKeeper list_keeper_;
  std::optional<Reporter> reporter_;
  std::set<std::string> agents_here_;  // the others, by the keys of their records
  const std::uint64_t incarnation_;
  bool seen_self_ = false;
  Status replaced_;  // another agent has this rank now
  bool closing_ = false;
  bool hurries_ = false;  // in this step something of a round or a pull has come
};

}  // namespace tensorbus::bus
