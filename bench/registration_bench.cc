// What it costs N + N ranks to register a batch of 1,000 tensors, all agents in one process:
// seconds until all have registered, processor seconds, switches of threads, and bytes to and from
// the store of a rank (L4.1). Every row has a process of its own, which is ended at the row's
// deadline.
#include <fmt/core.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "os/io/poll.h"
#include "registration_cluster.h"
#include "rows.h"
#include "tensorbus/log.h"

namespace tensorbus::bench {
namespace {

// Beyond the deadline of its calls: a row that fails says why.
constexpr Duration time_to_explain = std::chrono::seconds(5);
constexpr rlim_t most_descriptors = 200'000;

struct Figures {
  int target_dim = 0;
  std::int64_t ranks = 0;  // of a side
  std::string why;         // it did not end; empty: it has
  double meeting_s = 0;
  double meeting_cpu_s = 0;
  double seconds = 0;
  double cpu_s = 0;     // of all ranks and the store
  double switches = 0;  // of a rank
  double bytes = 0;     // of a rank
  int lapses = 0;       // of leases, of all ranks: whoever was taken for dead registers again

  std::string name() const { return fmt::format("Shard(0) -> Shard({})", target_dim); }
};

// What the process of a row says: a line for each phase that begins, then the figures.
class Teller {
 public:
  explicit Teller(int fd) : fd_(fd) {}
  void phase(std::string_view name) const { say(fmt::format("phase {}\n", name)); }
  void lapse() const { say("lapse\n"); }
  void failure(std::string_view why) const { say(fmt::format("failure {}\n", why)); }
  void figures(const Figures& row) const {
    say(fmt::format("figures {} {} {} {} {} {}\n", row.meeting_s, row.meeting_cpu_s, row.seconds,
                    row.cpu_s, row.switches, row.bytes));
  }

 private:
  void say(const std::string& line) const {
    if (::write(fd_, line.data(), line.size()) < 0) std::_Exit(1);
  }
  const int fd_;
};

void measure(Figures row, Deadline deadline, const Teller& teller) {
  // Agents whose leases have lapsed say so in the log.
  log::set_sink([&teller](log::Level, std::string_view message) {
    if (message.find("was taken for dead") != std::string_view::npos) teller.lapse();
  });
  teller.phase("starting agents");
  RegistrationCluster cluster(row.ranks, row.target_dim, deadline);
  const auto all = static_cast<double>(2 * row.ranks);

  teller.phase("meeting");
  Used before = used_by_now();
  TimePoint began = now();
  cluster.meet();
  row.meeting_s = seconds_since(began);
  row.meeting_cpu_s = used_by_now().cpu_seconds - before.cpu_seconds;

  teller.phase("registering");
  const double sent = cluster.bytes();
  before = used_by_now();
  began = now();
  cluster.enlist();
  row.seconds = seconds_since(began);
  const Used after = used_by_now();
  row.cpu_s = after.cpu_seconds - before.cpu_seconds;
  row.switches = (after.switches - before.switches) / all;
  row.bytes = (cluster.bytes() - sent) / all;
  teller.figures(row);
}

// Every connection takes some, and all ends of all connections are in one process. Only root may
// have more than the limit that was set for it.
void take_all_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit more{most_descriptors, most_descriptors};
  if (limit.rlim_max < most_descriptors && ::setrlimit(RLIMIT_NOFILE, &more) == 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// The process of a row. Whatever it has is the kernel's to tidy away.
[[noreturn]] void be_measured(const Figures& row, Duration patience, const Teller& teller) {
  // If memory runs out, this is the process to end, and not another of the machine's.
  std::ofstream("/proc/self/oom_score_adj") << 1000;
  take_all_descriptors();
  try {
    measure(row, Deadline::after(patience), teller);
  } catch (const std::exception& error) {
    teller.failure(error.what());
  }
  std::_Exit(0);
}

std::string said_until(const os::Fd& from, Deadline deadline) {
  std::string said;
  std::array<char, 4096> buffer;
  pollfd readable{from.get(), POLLIN, 0};
  while (os::wait_ready({&readable, 1}, deadline)) {
    const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    said.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return said;
}

// Into the row: figures, or why there are none.
void understand(Figures& row, const std::string& said, Duration patience, int status) {
  std::istringstream lines(said);
  std::string phase;
  std::string line;
  row.why = "nothing was measured";
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "lapse") ++row.lapses;
    if (kind == "phase") phase = line.substr(kind.size() + 1);
    if (kind == "failure") row.why = line.substr(kind.size() + 1);
    if (kind != "figures") continue;
    words >> row.meeting_s >> row.meeting_cpu_s >> row.seconds >> row.cpu_s >> row.switches >>
        row.bytes;
    row.why.clear();
    return;
  }
  if (WIFSIGNALED(status)) row.why = fmt::format("ended by signal {}", WTERMSIG(status));
  row.why = fmt::format("did not end within {} s: {} while {}, {} leases had lapsed",
                        std::chrono::duration_cast<std::chrono::seconds>(patience).count(), row.why,
                        phase, row.lapses);
}

void run_apart(Figures& row, Duration patience) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) os::throw_errno("pipe");
  const os::Fd reading(ends[0]);
  const pid_t child = ::fork();
  if (child < 0) os::throw_errno("fork");
  if (child == 0) be_measured(row, patience, Teller(ends[1]));
  ::close(ends[1]);
  const std::string said = said_until(reading, Deadline::after(patience + time_to_explain));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  understand(row, said, patience, status);
}

void print_line(const Figures& row, const Figures* before) {
  fmt::print("{:<22}{:>12}", row.name(), fmt::format("{0} + {0}", row.ranks));
  if (!row.why.empty()) {
    fmt::print("  {}\n", row.why);
  } else {
    // Of a rank, for each further one on either side.
    const double growth =
        before == nullptr
            ? 0
            : (row.bytes - before->bytes) / static_cast<double>(2 * (row.ranks - before->ranks));
    fmt::print("{:>10.2f}{:>13.2f}{:>11.1f}{:>10.0f}{:>10.0f}{:>11.0f}{:>12.2f}{:>13.2f}{:>8}\n",
               row.seconds, row.cpu_s, row.cpu_s / static_cast<double>(2 * row.ranks) * 1e3,
               row.switches, row.bytes, growth, row.meeting_s, row.meeting_cpu_s, row.lapses);
  }
  std::fflush(stdout);
}

void print_heading() {
  fmt::print("{:<22}{:>12}{:>10}{:>13}{:>11}{:>10}{:>10}{:>11}{:>12}{:>13}{:>8}\n", "1,000 tensors",
             "ranks", "s", "processor s", "ms a rank", "switches", "bytes", "a further",
             "before: s", "processor s", "lapses");
}

void write(const std::vector<Figures>& all, const std::string& path) {
  std::ofstream file(path);
  file << "[";
  for (const Figures& each : all) {
    file << (&each == all.data() ? "\n" : ",\n")
         << fmt::format(R"( {{"name": "registration of {} tensors, {}, {} + {} ranks", )",
                        RegistrationCluster::tensors, each.name(), each.ranks, each.ranks);
    if (!each.why.empty()) {
      std::string why = each.why;
      std::ranges::replace(why, '"', '\'');
      file << fmt::format(R"("s": null, "why": "{}"}})", why);
      continue;
    }
    file << fmt::format(R"("s": {:.4g}, "processor_s": {:.4g}, "switches_a_rank": {:.4g}, )"
                        R"("store_bytes_a_rank": {:.0f}, "lapses": {}, "meeting_s": {:.4g}, )"
                        R"("meeting_processor_s": {:.4g}}})",
                        each.seconds, each.cpu_s, each.switches, each.bytes, each.lapses,
                        each.meeting_s, each.meeting_cpu_s);
  }
  file << "\n]\n";
}

struct Options {
  std::string json{};
  std::optional<std::int64_t> ranks{};            // only so many a side
  std::optional<int> target_dim{};                // only this one
  Duration patience = std::chrono::seconds(180);  // with a row
};

[[noreturn]] void explain_options(const char* program) {
  fmt::print(stderr, "usage: {} [--json FILE] [--ranks N] [--shard 0|1] [--deadline SECONDS]\n",
             program);
  std::exit(2);
}

Options options_of(int argc, char** argv) {
  Options options;
  if (argc % 2 == 0) explain_options(argv[0]);
  for (int at = 1; at < argc; at += 2) {
    const std::string_view name = argv[at];
    if (name == "--json") {
      options.json = argv[at + 1];
    } else if (name == "--ranks") {
      options.ranks = std::stoll(argv[at + 1]);
    } else if (name == "--shard") {
      options.target_dim = std::stoi(argv[at + 1]);
    } else if (name == "--deadline") {
      options.patience = std::chrono::seconds(std::stoll(argv[at + 1]));
    } else {
      explain_options(argv[0]);
    }
  }
  return options;
}

// Where every rank reads from all, each has a thousand pieces for every other rank: beyond 64 + 64
// those of all ranks together do not fit into the memory of one machine.
std::vector<std::int64_t> counts_of(int target_dim, const Options& options) {
  if (options.ranks) return {*options.ranks};
  if (target_dim == 1) return {2, 8, 32, 64};
  return {2, 8, 32, 64, 128, 256, 512};
}

void measure_curve(int target_dim, const Options& options, std::vector<Figures>& all) {
  std::optional<Figures> before;
  for (const std::int64_t count : counts_of(target_dim, options)) {
    Figures row;
    row.target_dim = target_dim;
    row.ranks = count;
    run_apart(row, options.patience);
    print_line(row, before ? &*before : nullptr);
    if (row.why.empty()) before = row;
    all.push_back(std::move(row));
  }
}

int run(int argc, char** argv) {
  const Options options = options_of(argc, argv);
  std::vector<Figures> all;
  print_heading();
  for (const int target_dim : {0, 1}) {
    if (options.target_dim.value_or(target_dim) != target_dim) continue;
    measure_curve(target_dim, options, all);
  }
  if (!options.json.empty()) write(all, options.json);
  return 0;
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) { return tensorbus::bench::run(argc, argv); }
