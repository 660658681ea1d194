#include "bus/report/job_status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "observe/text.h"

namespace tensorbus::bus {
namespace {

using observe::to_json_string;

// Whoever is waited for longer is to blame.
constexpr double usual_wait = 10;
// A reader may be one version behind while it reads the next, and by more than that for as long as
// it takes until all have said what they have.
constexpr std::int64_t usual_lag = 1;
constexpr double usual_lag_seconds = 5;

std::string numbers_text(std::span<const Rank> ranks) {
  constexpr std::size_t most = 6;
  std::string named = fmt::format("{}", fmt::join(ranks.first(std::min(ranks.size(), most)), ", "));
  if (ranks.size() <= most) return named;
  return fmt::format("{} and {} more", named, ranks.size() - most);
}

std::string ranks_text(std::span<const Rank> ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + numbers_text(ranks);
}

std::string seconds_text(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  if (seconds < 600) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{:.0f} min", seconds / 60);
}

// Before anything can move, all ranks have to come.
bool meets_others(const BatchStatus& batch) {
  return batch.work == "init_pair" || batch.work == "registration";
}

// Of the bytes that have to move, those that have.
double share_of(const BatchStatus& batch) {
  if (batch.bytes_total == 0) return 0;
  return static_cast<double>(batch.bytes_done) / static_cast<double>(batch.bytes_total);
}

// "reads version 8 from 0, 1: 62 %".
std::string reading_text(const BatchStatus& batch) {
  std::string text = "reads";
  if (*batch.reads != 0) text += fmt::format(" version {}", *batch.reads);
  if (!batch.from.empty()) text += " from " + numbers_text(batch.from);
  if (batch.bytes_total > 0) text += fmt::format(": {:.0f} %", 100 * share_of(batch));
  return text;
}

void describe(JobRow& row, const BatchStatus& batch, std::int64_t now) {
  if (batch.since == 0) {
    row.doing = "idle";
    return;
  }
  row.waited = std::max(0.0, static_cast<double>(now - batch.since) / 1e9);
  const RankState waiting = row.waited < usual_wait ? RankState::waits : RankState::blocked;
  if (batch.reads) {
    row.state = RankState::moves;
    row.share = share_of(batch);
    row.doing = reading_text(batch);
  } else if (!batch.awaited.empty()) {
    row.awaited = batch.awaited;
    row.state = waiting;
    row.doing = fmt::format("{} waits {} for {}", batch.work, seconds_text(row.waited),
                            ranks_text(batch.awaited));
  } else if (batch.bytes_total > 0) {
    row.state = RankState::moves;
    row.share = share_of(batch);
    row.doing = fmt::format("{}: {:.0f} % of {:.2f} GB", batch.work, 100 * row.share,
                            static_cast<double>(batch.bytes_total) / 1e9);
  } else {
    // A pull may wait for the next version as long as a step of training takes.
    row.state = meets_others(batch) ? waiting : RankState::waits;
    row.doing = fmt::format("{}, {}{}{}", batch.work, seconds_text(row.waited),
                            batch.waits.empty() ? "" : ": waits for ", batch.waits);
  }
}

JobRow row_of(const AgentStatus& agent, const BatchStatus& batch, std::int64_t now) {
  JobRow row;
  row.rank = agent.rank;
  row.host = agent.host;
  row.pid = agent.pid;
  row.embedded = agent.embedded;
  row.side = batch.side;
  row.batch = batch.batch;
  row.work = batch.work;
  row.version = batch.version;
  row.reads = batch.reads;
  row.metrics = agent.metrics;
  row.world_size = batch.world_size;
  row.from = batch.from;
  if (batch.moved_at != 0) row.age = std::max(0.0, static_cast<double>(now - batch.moved_at) / 1e9);
  if (batch.took > 0) {
    row.gigabytes_per_second = static_cast<double>(batch.bytes) / static_cast<double>(batch.took);
  }
  describe(row, batch, now);
  return row;
}

std::string_view without_kind(std::string_view batch) {
  constexpr std::string_view shelf = "shelf of ";
  return batch.starts_with(shelf) ? batch.substr(shelf.size()) : batch;
}

// As short as tells the batches of the job apart.
void name_batches(JobStatus& status) {
  std::map<std::string_view, std::set<std::string_view>> shown, longer;
  for (const JobRow& row : status.rows) {
    shown[shown_batch(row.batch)].insert(row.batch);
    longer[without_kind(row.batch)].insert(row.batch);
  }
  for (JobRow& row : status.rows) {
    row.what = shown[shown_batch(row.batch)].size() == 1     ? shown_batch(row.batch)
               : longer[without_kind(row.batch)].size() == 1 ? without_kind(row.batch)
                                                             : std::string_view(row.batch);
  }
}

using Seat = std::tuple<std::string, std::string, Rank>;  // side, batch, rank

// Ranks that pull together wait for the first of them, and that may wait for the next version as
// long as a step of training takes: then they all do.
void relieve(JobStatus& status) {
  std::map<Seat, std::string> patient;
  for (const JobRow& row : status.rows) {
    if (row.state == RankState::waits && row.awaited.empty()) {
      patient[{row.side, row.batch, row.rank}] = row.doing;
    }
  }
  for (JobRow& row : status.rows) {
    if (row.awaited.size() != 1) continue;
    const auto first = patient.find({row.side, row.batch, row.awaited.front()});
    if (first == patient.end()) continue;
    row.state = RankState::waits;
    row.doing = first->second;
    row.awaited.clear();
  }
}

// Those who wait for others themselves: who is to blame stands at the end of such a chain.
std::set<Rank> links_of_chains(const JobStatus& status) {
  std::set<Rank> links;
  for (const JobRow& row : status.rows) {
    if (row.state == RankState::blocked && !row.awaited.empty()) links.insert(row.rank);
  }
  const auto is_link = [&](Rank rank) { return links.contains(rank); };
  const bool all = std::ranges::all_of(status.rows, [&](const JobRow& row) {
    return row.state != RankState::blocked || std::ranges::all_of(row.awaited, is_link);
  });
  return all ? std::set<Rank>{} : links;  // in a circle everybody is to blame
}

// Who waits for whom, the other way round, with the longest wait.
struct Blamed {
  std::vector<Rank> by;
  double longest = 0;
};

void add_waits(JobStatus& status, std::span<const AgentStatus> agents) {
  std::map<Rank, Blamed> blamed;
  const std::set<Rank> links = links_of_chains(status);
  for (const JobRow& row : status.rows) {
    if (row.state != RankState::blocked) continue;
    for (const Rank rank : row.awaited) {
      if (links.contains(rank)) continue;
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

void add_incomplete(JobStatus& status) {
  for (const JobRow& row : status.rows) {
    if (row.state != RankState::blocked || !row.awaited.empty()) continue;
    status.problems.push_back(
        {fmt::format("rank {}: {} (batch \"{}\")", row.rank, row.doing, row.batch), {row.rank}});
  }
}

// Agents renew their leases three times before they lapse.
void add_leases(JobStatus& status, std::span<const AgentStatus> agents) {
  constexpr double usual_left = 0.5;
  for (const AgentStatus& agent : agents) {
    if (!agent.lease_left || *agent.lease_left > usual_left) continue;
    status.problems.push_back(
        {fmt::format(
             "rank {} (pid {} on {}) does not renew its lease, {:.0f} % of it are left: it is "
             "stopped, very slow, or cut off from the store",
             agent.rank, agent.pid, agent.host, 100 * std::max(0.0, *agent.lease_left)),
         {agent.rank}});
  }
}

// Ranks of another job that has the same names.
void add_crowds(JobStatus& status) {
  struct Crowd {
    std::set<Rank> ranks;
    std::set<std::int64_t> sizes;
    std::string what{};
  };
  std::map<std::pair<std::string, std::string>, Crowd> crowds;
  for (const JobRow& row : status.rows) {
    if (row.world_size == 0) continue;
    Crowd& crowd = crowds[{row.side, row.batch}];
    crowd.what = row.what;
    crowd.ranks.insert(row.rank);
    crowd.sizes.insert(row.world_size);
  }
  for (const auto& [name, crowd] : crowds) {
    const bool fits = static_cast<std::int64_t>(crowd.ranks.size()) <= *crowd.sizes.rbegin();
    if (fits && crowd.sizes.size() == 1) continue;
    status.problems.push_back(
        {fmt::format(
             "side \"{}\" of \"{}\" has {} ranks, which were told of {}: are there two jobs "
             "in this namespace?",
             name.first, crowd.what, crowd.ranks.size(), fmt::join(crowd.sizes, " and of ")),
         {crowd.ranks.begin(), crowd.ranks.end()}});
  }
}

void add_clocks(JobStatus& status, const HostClocks& clocks) {
  for (const auto& [host, ahead] : clocks.ahead()) {
    const double seconds = std::abs(static_cast<double>(ahead)) / 1e9;
    status.problems.push_back(
        {fmt::format("the clock of host {} is {} {} this one's; ages of its "
                     "ranks are corrected by that",
                     host, seconds_text(seconds), ahead > 0 ? "ahead of" : "behind"),
         {}});
  }
}

void add_lags(JobStatus& status) {
  struct Newest {
    std::int64_t version = 0;
    double age = 0;
    std::string what{};
  };
  std::map<std::string, Newest> newest;  // by batch
  for (const JobRow& row : status.rows) {
    Newest& of = newest[row.batch];
    if (row.version > of.version) of = {row.version, row.age, row.what};
  }
  std::map<std::pair<std::string, std::int64_t>, std::vector<Rank>> behind;
  for (const JobRow& row : status.rows) {
    const Newest& of = newest[row.batch];
    if (row.version != 0 && row.version + usual_lag < of.version &&
        row.age > of.age + usual_lag_seconds) {
      behind[{row.batch, row.version}].push_back(row.rank);
    }
  }
  for (const auto& [at, ranks] : behind) {
    status.problems.push_back(
        {fmt::format("{} {} version {} of \"{}\", the newest is {}", ranks_text(ranks),
                     ranks.size() == 1 ? "has" : "have", at.second, newest[at.first].what,
                     newest[at.first].version),
         ranks});
  }
}

std::string cut(const std::string& text, std::size_t width) {
  if (observe::columns_of(text) <= width) return text;
  std::string_view rest = text;
  std::string kept;
  for (std::size_t column = 0; column + 1 < width; ++column) {
    const std::size_t length = std::max<std::size_t>(observe::character_at(rest), 1);
    kept += rest.substr(0, length);
    rest.remove_prefix(length);
  }
  return kept + "~";
}

// Filled with spaces; fmt counts columns as terminals do not.
std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string spaces(width - std::min(width, observe::columns_of(text)), ' ');
  return right ? spaces + text : text + spaces;
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
    line += padded(cells[at], widths[at], number) + "  ";
  }
  return line + cells.back();
}

using Lines = std::vector<std::vector<std::string>>;

// Of the columns but the last, with names of so many columns at most.
std::vector<std::size_t> widths_of(const Lines& lines, std::size_t longest) {
  std::vector<std::size_t> widths(lines.front().size() - 1, 0);
  for (const auto& line : lines) {
    for (std::size_t at = 0; at < widths.size(); ++at) {
      widths[at] = std::max(widths[at], std::min(longest, observe::columns_of(line[at])));
    }
  }
  return widths;
}

bool fits(const Lines& lines, const std::vector<std::size_t>& widths, std::size_t width) {
  std::size_t before = 0;
  for (const std::size_t column : widths) before += column == 0 ? 0 : column + 2;
  return std::ranges::all_of(
      lines, [&](const auto& line) { return before + observe::columns_of(line.back()) <= width; });
}

// Names give way to what the ranks do, as far as that helps and they stay names.
std::vector<std::size_t> shorten_names(Lines& lines, std::size_t width) {
  constexpr std::size_t usual = 14, shortest = 10;
  std::size_t longest = usual;
  while (longest >= shortest && !fits(lines, widths_of(lines, longest), width)) --longest;
  if (longest < shortest) longest = usual;
  const std::vector<std::size_t> widths = widths_of(lines, longest);
  for (auto& line : lines) {
    for (std::size_t at = 0; at < widths.size(); ++at) line[at] = cut(line[at], widths[at]);
  }
  return widths;
}

std::string ranks_json(std::span<const Rank> ranks) {
  return fmt::format("[{}]", fmt::join(ranks, ","));
}

std::string row_json(const JobRow& row) {
  return fmt::format(
      R"({{"rank":{},"host":{},"pid":{},"embedded":{},"side":{},"batch":{},"what":{},"work":{},"version":{},"reads":{},)"
      R"("age":{:.1f},"state":"{}","doing":{},"waited":{:.1f},"awaited":{},"from":{},)"
      R"("share":{:.3f},"gbps":{:.3f},"metrics":{}}})",
      row.rank, to_json_string(row.host), row.pid, row.embedded, to_json_string(row.side),
      to_json_string(row.batch), to_json_string(row.what), to_json_string(row.work), row.version,
      row.reads ? std::to_string(*row.reads) : "null", row.age, to_string(row.state),
      to_json_string(row.doing), row.waited, ranks_json(row.awaited), ranks_json(row.from),
      row.share, row.gigabytes_per_second, to_json_string(row.metrics));
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
      return "blocked";
    case RankState::gone:
      break;
  }
  return "gone";
}

JobStatus status_of(std::span<const AgentStatus> agents, std::int64_t now,
                    const HostClocks& clocks) {
  JobStatus status;
  for (const AgentStatus& agent : agents) {
    const std::int64_t there = clocks.there(agent.host, now);
    for (const BatchStatus& batch : agent.batches) {
      status.rows.push_back(row_of(agent, batch, there));
    }
    if (!agent.batches.empty()) continue;
    JobRow& row = status.rows.emplace_back(row_of(agent, {}, there));
    row.doing = "idle";
  }
  name_batches(status);
  std::ranges::sort(status.rows, {},
                    [](const JobRow& row) { return std::tie(row.side, row.batch, row.rank); });
  relieve(status);
  add_waits(status, agents);
  add_leases(status, agents);
  add_incomplete(status);
  add_lags(status);
  add_crowds(status);
  add_clocks(status, clocks);
  return status;
}

std::string to_table(const JobStatus& status, std::size_t width) {
  constexpr std::size_t wide = 110;  // there is room for hosts and pids
  std::vector<std::vector<std::string>> lines{
      {"side", "what", "rank", "version", "age", "GB/s", "host", "pid", "doing"}};
  for (const JobRow& row : status.rows) lines.push_back(cells_of(row));
  for (auto& line : lines) {
    if (width < wide) line[6] = line[7] = "";
    for (std::string& cell : line) cell = observe::printable(cell);
  }
  const std::vector<std::size_t> widths = shorten_names(lines, width);
  std::string text;
  for (const auto& line : lines) text += cut(joined(line, widths), width) + "\n";
  if (status.rows.empty()) text = "no agent has said anything yet\n";
  for (const JobProblem& problem : status.problems) {
    text += "! " + observe::printable(problem.text) + "\n";
  }
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
