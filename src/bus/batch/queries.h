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
  Queries(OwnRegistration& self, const Sending& sending, const Receiving& receiving)
      : self_(self), sending_(sending), receiving_(receiving) {}

  void ask(CommandId id, const QuerySignal& query, Deadline deadline);
  void ask_versions(CommandId id) const;
  // Answers what can be answered now.
  void answer();
  // False: not one of them.
  bool cancel(CommandId id, const Status& why);
  void close(const Status& why);
  TimePoint wake_at() const;

 private:
  struct Query {
    CommandId id;
    QuerySignal query;
    Deadline deadline;
  };

  bool published(std::optional<std::int64_t> round) const;
  std::string unpublished(std::optional<std::int64_t> round) const;
  bool is_lost(const std::string& side, Rank rank) const;

  OwnRegistration& self_;
  const Sending& sending_;
  const Receiving& receiving_;
  std::vector<Query> waiting_;
};

}  // namespace tensorbus::bus
