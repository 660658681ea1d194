#include "program/look/board.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "observe/text.h"

namespace tensorbus::program {
namespace {

constexpr std::size_t most_happened = 200;
constexpr std::size_t most_versions = 400;
constexpr std::int64_t shown_when_lost = 600'000'000'000;

constexpr std::size_t most_ranks_apart = 16;  // as many as the page draws one by one

std::int64_t milliseconds(std::int64_t nanoseconds) { return nanoseconds / 1'000'000; }

// The same while only its numbers change, apart from whom it is about.
std::string without_numbers(const bus::JobProblem& problem) {
  std::string kind = problem.ranks.empty() ? "" : std::to_string(problem.ranks.front());
  std::ranges::copy_if(problem.text, std::back_inserter(kind),
                       [](char c) { return (c < '0' || c > '9') && c != '.'; });
  return kind;
}

// Pairs of rank and time; none of a large side.
std::string times_json(const std::map<Rank, std::int64_t>& ranks) {
  std::vector<std::string> pairs;
  if (ranks.size() > most_ranks_apart) return "[]";
  for (const auto& [rank, at] : ranks) {
    pairs.push_back(fmt::format("[{},{}]", rank, milliseconds(at)));
  }
  return fmt::format("[{}]", fmt::join(pairs, ","));
}

}  // namespace

void Board::note(std::int64_t now, std::string kind, std::string text) {
  log_.push_back({now, std::move(kind), std::move(text)});
  if (log_.size() > most_happened) log_.pop_front();
}

void Board::see(const std::vector<bus::AgentStatus>& agents, std::int64_t now) {
  if (!error_.empty()) note(now, "good", "the store answers again");
  error_.clear();
  now_ = now;
  clocks_.see(agents, now);
  status_ = bus::status_of(agents, now, clocks_);
  follow_ranks(agents, now);
  follow_lost(now);
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
    if (pids.contains(rank)) continue;
    note(now, "loss", fmt::format("rank {} is gone (pid {})", rank, pid));
    lost_[rank] = {now, rows_[rank]};
  }
  for (const auto& [rank, pid] : pids) lost_.erase(rank);
  pids_ = std::move(pids);
  rows_.clear();
  for (const bus::JobRow& row : status_.rows) rows_[row.rank].push_back(row);
}

// Whoever is gone stays in sight for as long as its side is there, so that people see who is
// missing where.
void Board::follow_lost(std::int64_t now) {
  std::set<std::pair<std::string, std::string>> sides;
  for (const bus::JobRow& row : status_.rows) sides.emplace(row.side, row.batch);
  std::erase_if(lost_, [&](const auto& entry) {
    const Lost& lost = entry.second;
    return now - lost.at > shown_when_lost || std::ranges::none_of(lost.rows, [&](const auto& row) {
             return sides.contains({row.side, row.batch});
           });
  });
  for (const auto& [rank, lost] : lost_) {
    for (bus::JobRow row : lost.rows) {
      const double since = static_cast<double>(now - lost.at) / 1e9;
      row.state = bus::RankState::gone;
      row.age += since;
      row.doing = fmt::format("gone for {:.0f} s", since);
      row.awaited.clear();
      status_.rows.push_back(std::move(row));
    }
  }
  std::ranges::sort(status_.rows, {},
                    [](const bus::JobRow& row) { return std::tie(row.side, row.batch, row.rank); });
}

void Board::follow_problems(std::int64_t now) {
  std::set<std::string> problems;
  for (const bus::JobProblem& problem : status_.problems) {
    const auto [kind, fresh] = problems.insert(without_numbers(problem));
    if (fresh && !problems_.contains(*kind)) note(now, "problem", problem.text);
  }
  if (problems.empty() && !problems_.empty()) note(now, "good", "nothing is wrong any more");
  problems_ = std::move(problems);
}

void Board::follow_versions(std::int64_t now) {
  for (const bus::JobRow& row : status_.rows) {
    if (row.version == 0) continue;
    Course& course = versions_[{row.batch, row.side, row.version}];
    // When it came, not when it was seen.
    const std::int64_t at = now - static_cast<std::int64_t>(row.age * 1e9);
    if (!course.ranks.emplace(row.rank, at).second) continue;
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
    const auto& [batch, side, number] = version;
    versions.push_back(fmt::format(R"({{"batch":{},"side":{},"version":{},"first":{},"last":{},)"
                                   R"("ranks":{},"at":{}}})",
                                   to_json_string(batch), to_json_string(side), number,
                                   milliseconds(course.first), milliseconds(course.last),
                                   course.ranks.size(), times_json(course.ranks)));
  }
  return bus::to_json(
      status_,
      fmt::format(R"("namespace":{},"store":{},"now":{},"error":{},"log":[{}],)"
                  R"("versions":[{}],)",
                  to_json_string(space_), to_json_string(store_), milliseconds(now_),
                  to_json_string(error_), fmt::join(happened, ","), fmt::join(versions, ",")));
}

}  // namespace tensorbus::program
