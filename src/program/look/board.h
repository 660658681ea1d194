// What a dashboard shows of a job: how it is, and what has happened since somebody looks. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "bus/report/job_status.h"

namespace tensorbus::program {

class Board {
 public:
  Board(std::string space, std::string store)
      : space_(std::move(space)), store_(std::move(store)) {}

  // What the store says now, in nanoseconds since 1970.
  void see(const std::vector<bus::AgentStatus>& agents, std::int64_t now);
  // The store does not answer.
  void lose(const std::string& why, std::int64_t now);
  // For the page.
  std::string to_json() const;

 private:
  // One version at one side: when the first and when the last of its ranks had it.
  struct Course {
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::map<Rank, std::int64_t> ranks;  // and when each had it
  };
  struct Happened {
    std::int64_t at = 0;
    std::string kind;  // "join", "loss", "problem", "good"
    std::string text;
  };
  // A rank that was there, as it was then.
  struct Lost {
    std::int64_t at = 0;
    std::vector<bus::JobRow> rows;
  };
  using Version = std::tuple<std::string, std::string, std::int64_t>;  // batch, side, number

  void note(std::int64_t now, std::string kind, std::string text);
  void follow_ranks(const std::vector<bus::AgentStatus>& agents, std::int64_t now);
  void follow_lost(std::int64_t now);
  void follow_problems(std::int64_t now);
  void follow_versions(std::int64_t now);

  const std::string space_;
  const std::string store_;
  std::int64_t now_ = 0;
  std::string error_;
  bus::JobStatus status_;
  bus::HostClocks clocks_;
  std::map<Rank, std::int64_t> pids_;
  std::map<Rank, std::vector<bus::JobRow>> rows_;  // of the ranks that are there
  std::map<Rank, Lost> lost_;
  std::set<std::string> problems_;  // what is wrong, without its numbers
  std::map<Version, Course> versions_;
  std::deque<Happened> log_;
};

}  // namespace tensorbus::program
