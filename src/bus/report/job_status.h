// What all agents of a job say of themselves, put together for people. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bus/report/host_clocks.h"
#include "bus/report/status_record.h"

namespace tensorbus::bus {

enum class RankState : std::uint8_t {
  idle,
  moves,    // reads, or is read from
  waits,    // for others
  blocked,  // for others, for longer than that is usual
  gone,     // others know it, and it says nothing any more
};
std::string_view to_string(RankState state) noexcept;

// One rank's part in one batch; without a batch, of a rank that has none yet.
struct JobRow {
  Rank rank = 0;
  std::string host;
  std::int64_t pid = 0;
  bool embedded = false;
  std::string side;
  std::string batch;
  std::string what{};  // the batch as its users know it; more of it if two have that name
  std::string work;
  std::int64_t version = 0;             // that it has
  std::optional<std::int64_t> reads{};  // the version that it reads now; 0: one without a number
  std::int64_t world_size = 0;          // ranks of its side; 0: not known
  double age = 0;                       // of the version, in seconds
  RankState state = RankState::idle;
  std::string doing{};  // "pull waits 14 s for rank 3", "reads version 8 from 0, 1: 62 %"
  double share = 0;     // of its bytes that have moved, 0 to 1
  double waited = 0;    // seconds
  std::vector<Rank> awaited{};
  std::vector<Rank> from{};
  double gigabytes_per_second = 0;  // of the last transfer
  std::string metrics{};
};

struct JobProblem {
  std::string text;
  std::vector<Rank> ranks;  // to blame
};

struct JobStatus {
  std::vector<JobRow> rows;  // by side, batch, rank
  std::vector<JobProblem> problems;
};

// `now`: nanoseconds since 1970, by a clock that the hosts' stand to as `clocks` knows.
JobStatus status_of(std::span<const AgentStatus> agents, std::int64_t now,
                    const HostClocks& clocks = {});
// For a terminal of so many columns; nothing in it moves the cursor.
std::string to_table(const JobStatus& status, std::size_t width = 80);
// An object; `more` are members that come first, each with a comma after it.
std::string to_json(const JobStatus& status, const std::string& more = "");

}  // namespace tensorbus::bus
