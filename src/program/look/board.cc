#include "program/board.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "observe/trace_events.h"

namespace tensorbus::program {
namespace {

constexpr std::size_t most_happened = 200;
constexpr std::size_t most_versions = 400;

std::int64_t milliseconds(std::int64_t nanoseconds) { return nanoseconds / 1'000'000; }

}  // namespace

void Board::note(std::int64_t now, std::string kind, std::string text) {
  log_.push_back({now, std::move(kind), std::move(text)});
  if (log_.size() > most_happened) log_.pop_front();
}

void Board::see(const std::vector<bus::AgentStatus>& agents, std::int64_t now) {
  if (!error_.empty()) note(now, "good", "the store answers again");
  error_.clear();
  now_ = now;
  status_ = bus::status_of(agents, now);
  follow_ranks(agents, now);
  follow_problems(now);
  follow_versions(now);
}

void Board::lose(const std::string& why, std::int64_t now) {
  if (error_.empty()) note(now, "problem", "the store does not answer: " + why);
  error_ = why;
  now_ = now;
}

void Board::follow_ranks(const std::vector<bus::AgentStatus>& agents, std::int64_t now) {
  std::map<Rank, std::int64_t> pids;
  for (const bus::AgentStatus& agent : agents) pids[agent.rank] = agent.pid;
  for (const auto& [rank, pid] : pids) {
    const auto before = pids_.find(rank);
    if (before == pids_.end()) {
      note(now, "join", fmt::format("rank {} is there (pid {})", rank, pid));
    } else if (before->second != pid) {
      note(now, "join", fmt::format("rank {} was replaced (pid {})", rank, pid));
    }
  }
  for (const auto& [rank, pid] : pids_) {
    if (!pids.contains(rank)) note(now, "loss", fmt::format("rank {} is gone (pid {})", rank, pid));
  }
  pids_ = std::move(pids);
}

void Board::follow_problems(std::int64_t now) {
  std::set<Rank> blamed;
  for (const bus::JobProblem& problem : status_.problems) {
    const bool known =
        std::ranges::all_of(problem.ranks, [&](Rank rank) { return blamed_.contains(rank); });
    if (!known) note(now, "problem", problem.text);
    blamed.insert(problem.ranks.begin(), problem.ranks.end());
  }
  if (blamed.empty() && !blamed_.empty()) note(now, "good", "nothing is wrong any more");
  blamed_ = std::move(blamed);
}

void Board::follow_versions(std::int64_t now) {
  for (const bus::JobRow& row : status_.rows) {
    if (row.version == 0) continue;
    Course& course = versions_[{row.what, row.side, row.version}];
    if (!course.ranks.insert(row.rank).second) continue;
    // When it came, not when it was seen.
    const std::int64_t at = now - static_cast<std::int64_t>(row.age * 1e9);
    course.first = course.first == 0 ? at : std::min(course.first, at);
    course.last = std::max(course.last, at);
  }
  while (versions_.size() > most_versions) {
    versions_.erase(std::ranges::min_element(versions_, {},
                                             [](const auto& entry) { return entry.second.last; }));
  }
}

std::string Board::to_json() const {
  using observe::to_json_string;
  std::vector<std::string> happened;
  for (const Happened& each : log_) {
    happened.push_back(fmt::format(R"({{"at":{},"kind":"{}","text":{}}})", milliseconds(each.at),
                                   each.kind, to_json_string(each.text)));
  }
  std::vector<std::string> versions;
  for (const auto& [version, course] : versions_) {
    const auto& [what, side, number] = version;
    versions.push_back(
        fmt::format(R"({{"what":{},"side":{},"version":{},"first":{},"last":{},"ranks":{}}})",
                    to_json_string(what), to_json_string(side), number, milliseconds(course.first),
                    milliseconds(course.last), course.ranks.size()));
  }
  return bus::to_json(
      status_,
      fmt::format(R"("namespace":{},"store":{},"now":{},"error":{},"log":[{}],)"
                  R"("versions":[{}],)",
                  to_json_string(space_), to_json_string(store_), milliseconds(now_),
                  to_json_string(error_), fmt::join(happened, ","), fmt::join(versions, ",")));
}

}  // namespace tensorbus::program
