// Workers that ask what was published, and what each rank has read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bus/batch/receiving.h"
#include "bus/batch/sending.h"
#include "bus/registration/own_registration.h"

namespace tensorbus::bus {

class Queries {
 public:
  Queries(OwnRegistration& self, Sending& sending, const Receiving& receiving)
      : self_(self), sending_(sending), receiving_(receiving) {}

  void ask(CommandId id, const QuerySignal& query, Deadline deadline);
  void ask_stage(CommandId id, const QueryStage& query);
  // Asks the first sender, if this rank can reach it.
  void ask_versions(CommandId id, Deadline deadline);
  // What another rank asks, or the first sender answers. False: the message is about something
  // else.
  bool on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  // Answers what can be answered now.
  void answer();
  // False: there is no such query.
  bool cancel(CommandId id, const Status& why);
  void close(const Status& why);
  TimePoint wake_at() const;

 private:
  struct Query {
    CommandId id;
    QuerySignal query;
    Deadline deadline;
  };

  struct VersionQuery {
    CommandId id;
    Deadline deadline;
  };

  // Of all ranks that are there, as far as this rank knows.
  Versions known_versions() const;
  void take_versions(const Versions& theirs);
  void answer_versions(CommandId id, const Versions& theirs) const;
  bool published(std::optional<std::int64_t> round) const;
  std::string unpublished(std::optional<std::int64_t> round) const;
  bool is_lost(const std::string& side, Rank rank) const;

  OwnRegistration& self_;
  Sending& sending_;
  const Receiving& receiving_;
  std::vector<Query> waiting_;
  std::vector<VersionQuery> asking_;  // the first sender
};

}  // namespace tensorbus::bus
