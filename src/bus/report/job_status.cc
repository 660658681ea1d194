#include "bus/report/job_status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "observe/trace_events.h"

namespace tensorbus::bus {
namespace {

using observe::to_json_string;

// Whoever is waited for longer is to blame.
constexpr double usual_wait = 10;
// A reader may be one version behind while it reads the next.
constexpr std::int64_t usual_lag = 1;

// "shelf of trainer/policy" is what the trainer publishes as "policy".
std::string shown_batch(const std::string& batch) {
  const std::size_t slash = batch.find('/');
  return slash == std::string::npos ? batch : batch.substr(slash + 1);
}

std::string ranks_text(std::span<const Rank> ranks) {
  constexpr std::size_t most = 6;
  const std::string named =
      fmt::format("{}", fmt::join(ranks.first(std::min(ranks.size(), most)), ", "));
  if (ranks.size() <= most) return (ranks.size() == 1 ? "rank " : "ranks ") + named;
  return fmt::format("ranks {} and {} more", named, ranks.size() - most);
}

std::string seconds_text(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  if (seconds < 600) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{:.0f} min", seconds / 60);
}

void describe(JobRow& row, const BatchStatus& batch, std::int64_t now) {
  if (batch.since == 0) {
    row.doing = "idle";
    return;
  }
  row.waited = std::max(0.0, static_cast<double>(now - batch.since) / 1e9);
  if (!batch.awaited.empty()) {
    row.awaited = batch.awaited;
    row.state = row.waited < usual_wait ? RankState::waits : RankState::blocked;
    row.doing = fmt::format("{} waits {} for {}", batch.work, seconds_text(row.waited),
                            ranks_text(batch.awaited));
  } else if (batch.bytes_total > 0) {
    row.state = RankState::moves;
    row.doing = fmt::format(
        "{}: {:.0f} % of {:.2f} GB", batch.work,
        100.0 * static_cast<double>(batch.bytes_done) / static_cast<double>(batch.bytes_total),
        static_cast<double>(batch.bytes_total) / 1e9);
  } else {
    row.state = RankState::waits;
    row.doing = fmt::format("{}, {}{}{}", batch.work, seconds_text(row.waited),
                            batch.waits.empty() ? "" : ": waits for ", batch.waits);
  }
}

JobRow row_of(const AgentStatus& agent, const BatchStatus& batch, std::int64_t now) {
  JobRow row{agent.rank,     agent.host,   agent.pid,
             agent.embedded, batch.side,   shown_batch(batch.batch),
             batch.work,     batch.version};
  row.metrics = agent.metrics;
  row.from = batch.from;
  if (batch.moved_at != 0) row.age = std::max(0.0, static_cast<double>(now - batch.moved_at) / 1e9);
  if (batch.took > 0) {
    row.gigabytes_per_second = static_cast<double>(batch.bytes) / static_cast<double>(batch.took);
  }
  describe(row, batch, now);
  return row;
}

// Who waits for whom, the other way round, with the longest wait.
struct Blamed {
  std::vector<Rank> by;
  double longest = 0;
};

void add_waits(JobStatus& status, std::span<const AgentStatus> agents) {
  std::map<Rank, Blamed> blamed;
  for (const JobRow& row : status.rows) {
    if (row.state != RankState::blocked) continue;
    for (const Rank rank : row.awaited) {
      blamed[rank].by.push_back(row.rank);
      blamed[rank].longest = std::max(blamed[rank].longest, row.waited);
    }
  }
  std::set<Rank> there;
  for (const AgentStatus& agent : agents) there.insert(agent.rank);
  for (const auto& [rank, blame] : blamed) {
    const bool one = blame.by.size() == 1;
    status.problems.push_back(
        {fmt::format("rank {} {}: {} {} {} for it", rank,
                     there.contains(rank) ? "is waited for" : "is gone or stopped",
                     ranks_text(blame.by), one ? "has waited" : "have waited",
                     seconds_text(blame.longest)),
         {rank}});
  }
}

void add_lags(JobStatus& status) {
  std::map<std::string, std::int64_t> newest;
  for (const JobRow& row : status.rows) {
    std::int64_t& version = newest[row.what];
    version = std::max(version, row.version);
  }
  std::map<std::pair<std::string, std::int64_t>, std::vector<Rank>> behind;
  for (const JobRow& row : status.rows) {
    if (row.version != 0 && row.version + usual_lag < newest[row.what]) {
      behind[{row.what, row.version}].push_back(row.rank);
    }
  }
  for (const auto& [at, ranks] : behind) {
    status.problems.push_back(
        {fmt::format("{} {} version {} of \"{}\", the newest is {}", ranks_text(ranks),
                     ranks.size() == 1 ? "has" : "have", at.second, at.first, newest[at.first]),
         ranks});
  }
}

std::string cut(std::string text, std::size_t width) {
  if (text.size() > width) text.replace(width - 1, std::string::npos, "~");
  return text;
}

std::vector<std::string> cells_of(const JobRow& row) {
  const bool has = row.version != 0;
  const double speed = row.gigabytes_per_second;
  return {row.side,
          row.what,
          std::to_string(row.rank),
          has ? std::to_string(row.version) : "-",
          has ? seconds_text(row.age) : "-",
          speed == 0 ? "-" : fmt::format("{:.2f}", speed),
          row.host,
          fmt::format("{}{}", row.pid, row.embedded ? "" : "*"),
          row.doing};
}

// Numbers to the right, in columns as wide as they must be; empty ones are left out.
std::string joined(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t at = 0; at + 1 < cells.size(); ++at) {
    if (widths[at] == 0) continue;
    const bool number = at >= 2 && at <= 5;
    line += number ? fmt::format("{:>{}}  ", cells[at], widths[at])
                   : fmt::format("{:{}}  ", cells[at], widths[at]);
  }
  return line + cells.back();
}

std::string ranks_json(std::span<const Rank> ranks) {
  return fmt::format("[{}]", fmt::join(ranks, ","));
}

std::string row_json(const JobRow& row) {
  return fmt::format(
      R"({{"rank":{},"host":{},"pid":{},"embedded":{},"side":{},"what":{},"work":{},"version":{},)"
      R"("age":{:.1f},"state":"{}","doing":{},"waited":{:.1f},"awaited":{},"from":{},)"
      R"("gbps":{:.3f},"metrics":{}}})",
      row.rank, to_json_string(row.host), row.pid, row.embedded, to_json_string(row.side),
      to_json_string(row.what), to_json_string(row.work), row.version, row.age,
      to_string(row.state), to_json_string(row.doing), row.waited, ranks_json(row.awaited),
      ranks_json(row.from), row.gigabytes_per_second, to_json_string(row.metrics));
}

}  // namespace

std::string_view to_string(RankState state) noexcept {
  switch (state) {
    case RankState::idle:
      return "idle";
    case RankState::moves:
      return "moves";
    case RankState::waits:
      return "waits";
    case RankState::blocked:
      break;
  }
  return "blocked";
}

JobStatus status_of(std::span<const AgentStatus> agents, std::int64_t now) {
  JobStatus status;
  for (const AgentStatus& agent : agents) {
    for (const BatchStatus& batch : agent.batches) status.rows.push_back(row_of(agent, batch, now));
    if (!agent.batches.empty()) continue;
    JobRow& row = status.rows.emplace_back(
        JobRow{agent.rank, agent.host, agent.pid, agent.embedded, "", "", "", 0});
    row.doing = "idle";
    row.metrics = agent.metrics;
  }
  std::ranges::sort(status.rows, {},
                    [](const JobRow& row) { return std::tie(row.side, row.what, row.rank); });
  add_waits(status, agents);
  add_lags(status);
  return status;
}

std::string to_table(const JobStatus& status, std::size_t width) {
  constexpr std::size_t wide = 110;  // there is room for hosts and pids
  std::vector<std::vector<std::string>> lines{
      {"side", "what", "rank", "version", "age", "GB/s", "host", "pid", "doing"}};
  for (const JobRow& row : status.rows) lines.push_back(cells_of(row));
  std::vector<std::size_t> widths(lines.front().size(), 0);
  for (auto& line : lines) {
    if (width < wide) line[6] = line[7] = "";
    for (std::size_t at = 0; at + 1 < line.size(); ++at) {
      line[at] = cut(line[at], 14);
      widths[at] = std::max(widths[at], line[at].size());
    }
  }
  std::string text;
  for (const auto& line : lines) text += cut(joined(line, widths), width) + "\n";
  if (status.rows.empty()) text = "no agent has said anything yet\n";
  for (const JobProblem& problem : status.problems) text += "! " + problem.text + "\n";
  return text;
}

std::string to_json(const JobStatus& status, const std::string& more) {
  std::vector<std::string> rows;
  for (const JobRow& row : status.rows) rows.push_back(row_json(row));
  std::vector<std::string> problems;
  for (const JobProblem& problem : status.problems) {
    problems.push_back(fmt::format(R"({{"text":{},"ranks":{}}})", to_json_string(problem.text),
                                   ranks_json(problem.ranks)));
  }
  return fmt::format(R"({{{}"rows":[{}],"problems":[{}]}})", more, fmt::join(rows, ","),
                     fmt::join(problems, ","));
}

}  // namespace tensorbus::bus
