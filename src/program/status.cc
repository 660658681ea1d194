// tensorbus status: who has which version, and who waits for whom.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "bus/report/job_status.h"
#include "observe/text.h"
#include "program/commands.h"
#include "program/look/job.h"

namespace tensorbus::program {
namespace {

struct StatusOptions {
  JobPlace place;
  bool watch = false;
  bool json = false;
  double every = 1;
};

std::size_t columns() {
  winsize size{};
  constexpr std::size_t usual = 80;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return usual;
  return std::max<std::size_t>(size.ws_col, 40);
}

std::string picture_of(JobSight& job, bus::HostClocks& clocks, const StatusOptions& options) {
  const auto agents = job.look();
  const std::int64_t now = wall_clock_ns();
  clocks.see(agents, now);
  const bus::JobStatus status = bus::status_of(agents, now, clocks);
  if (options.json) {
    const std::string space = observe::to_json_string(job.space());
    return bus::to_json(status, fmt::format("\"namespace\":{},", space)) + "\n";
  }
  return bus::to_table(status, columns());
}

// The table in place of the last one; of what is no terminal, below it.
void repaint(const std::string& text) {
  if (::isatty(STDOUT_FILENO) != 0) std::cout << "\x1b[H\x1b[2J";
  std::cout << text << std::flush;
}

int watch_job(JobSight& job, const StatusOptions& options) {
  bus::HostClocks clocks;
  while (true) {
    try {
      repaint(picture_of(job, clocks, options));
    } catch (const Error& error) {
      // A store that is restarted is asked again.
      if (error.code() == Code::invalid_argument || error.code() == Code::denied) throw;
      repaint(observe::printable(fmt::format("the store at {} does not answer: {}", job.store_url(),
                                             error.what())) +
              "\n");
    }
    if (!std::cout) return exit_ok;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.every));
  }
}

int show_status(const StatusOptions& options) {
  JobSight job(options.place, read_token(options.place.token_file));
  if (options.watch) return watch_job(job, options);
  bus::HostClocks clocks;
  std::cout << picture_of(job, clocks, options);
  return exit_ok;
}

}  // namespace

void add_job_options(CLI::App& command, JobPlace& place) {
  command.add_option("--store", place.url, "Store of the job (default: $TENSORBUS_STORE)");
  command.add_option("--namespace", place.space,
                     "Which job on the store (default: $TENSORBUS_NAMESPACE or \"default\")");
  command.add_option("--token-file", place.token_file,
                     "File whose first line is the store's token (default: $TENSORBUS_TOKEN)");
  command.add_option("--timeout", place.timeout, "Seconds to wait for the store")
      ->capture_default_str()
      ->check(positive_number());
}

void add_status(CLI::App& app, Run& run) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* command =
      app.add_subcommand("status", "Show who has which version, and who waits for whom");
  add_job_options(*command, options->place);
  command->add_flag("--watch", options->watch, "Again and again, in place");
  command->add_flag("--json", options->json, "One line of JSON instead of a table");
  command->add_option("--every", options->every, "Seconds between two looks of --watch")
      ->capture_default_str()
      ->check(positive_number());
  command->footer(
      "A star behind a pid: an agent of its own, not one inside its worker. Lines that begin with\n"
      "\"!\" say what is wrong. Agents report every two seconds at most "
      "(TENSORBUS_STATUS_PERIOD).\n\n"
      "Examples:\n"
      "  tensorbus status --store tensorbus://127.0.0.1:29500\n"
      "  tensorbus status --watch\n"
      "  tensorbus status --json | jq '.problems[].text'");
  command->callback([options, &run] { run = [options] { return show_status(*options); }; });
}

}  // namespace tensorbus::program
