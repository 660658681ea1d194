// The subcommands of the tensorbus program. Each adds itself to the command line and stores what to
// run when it is chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "program/look/job.h"
#include "program/run.h"

namespace tensorbus::program {

// What scripts can rely on.
enum ExitCode : int {
  exit_ok = 0,
  exit_failed = 1,
  exit_usage = 2,
  exit_timeout = 3,
  exit_absent = 4,
  exit_unreachable = 5,
};

// What the chosen subcommand does; the result is the exit code.
using Run = std::function<int()>;

void add_store(CLI::App& app, Run& run);
void add_kv(CLI::App& app, Run& run);
void add_plan(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run);
void add_agent(CLI::App& app, Run& run, const Reached& reached);
void add_launch(CLI::App& app, Run& run);
void add_status(CLI::App& app, Run& run);
void add_dashboard(CLI::App& app, Run& run);
void add_trace(CLI::App& app, Run& run);

// Of commands that look at a job.
void add_job_options(CLI::App& command, JobPlace& place);

// Of the options --metrics.
inline constexpr const char* metrics_help =
    "HOST:PORT of a page with metrics for Prometheus, at /metrics; port 0 picks a free one, and "
    "the log says which (default: $TENSORBUS_METRICS; without: no page)";

// Each client or peer is a descriptor, and the usual soft limit is 1024.
void raise_descriptor_limit();

// For options: a whole number from `least` on. CLI11 alone takes -1 for a very large one.
CLI::Validator whole_number(std::int64_t least);
// For options: a number greater than 0.
CLI::Validator positive_number();

// The first line of a token file; nothing for an empty path. Error(invalid_argument) if the path is
// no regular file, or open to other users.
std::optional<std::string> read_token(const std::string& path);

}  // namespace tensorbus::program
