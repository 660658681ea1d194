// Workers that ask what a side publishes, and wait until it has published something.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bus/channel/channel.h"
#include "bus/round/context.h"

namespace tensorbus::bus {

class ContentQueries {
 public:
  explicit ContentQueries(Context& context) : context_(context) {}

  void ask(const Submission& submission, const QueryContents& query);
  // Answers what can be answered now, or not in time.
  void answer();
  // False: there is no such query.
  bool cancel(CommandId id, const Status& why);
  void end_session(std::uint64_t session, const Status& why);
  TimePoint wake_at() const;

 private:
  struct Query {
    CommandId id;
    std::string batch;
    Deadline deadline;
  };

  std::string instead_of(const std::string& batch) const;
  void fail(const Query& query, Status why) const;

  Context& context_;
  std::vector<Query> waiting_;
};

}  // namespace tensorbus::bus
