#include "bus/agent/content_queries.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bus/directory/catalog.h"
#include "bus/match/problems.h"

namespace tensorbus::bus {

void ContentQueries::ask(const Submission& submission, const QueryContents& query) {
  waiting_.push_back({submission.id, query.batch, submission.deadline});
}

void ContentQueries::answer() {
  std::erase_if(waiting_, [&](const Query& each) {
    Outcome outcome;
    outcome.contents = context_.catalog.contents(each.batch);
    const bool late = each.deadline.at() <= context_.now;
    if (outcome.contents.empty() && !late) return false;
    if (outcome.contents.empty()) {
      outcome.status = {Code::timeout,
                        fmt::format("batch \"{}\": nobody has published a version of it, or not "
                                    "all ranks that publish it are there{}",
                                    each.batch, instead_of(each.batch))};
    }
    context_.channel.complete(each.id, outcome);
    return true;
  });
}

std::string ContentQueries::instead_of(const std::string& batch) const {
  const auto names = context_.catalog.published();
  return names.contains(batch) ? "" : did_you_mean(names);
}

void ContentQueries::fail(const Query& query, Status why) const {
  Outcome outcome;
  outcome.status = std::move(why);
  context_.channel.complete(query.id, outcome);
}

bool ContentQueries::cancel(CommandId id, const Status& why) {
  return std::erase_if(waiting_, [&](const Query& each) {
           if (each.id != id) return false;
           fail(each, why);
           return true;
         }) > 0;
}

void ContentQueries::end_session(std::uint64_t session, const Status& why) {
  std::erase_if(waiting_, [&](const Query& each) {
    if (each.id.session != session) return false;
    fail(each, why);
    return true;
  });
}

TimePoint ContentQueries::wake_at() const {
  TimePoint at = TimePoint::max();
  for (const Query& query : waiting_) at = std::min(at, query.deadline.at());
  return at;
}

}  // namespace tensorbus::bus
