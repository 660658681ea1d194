// The subcommands of the tensorbus program. Each adds itself to the command line and stores what to
// run when it is chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace tensorbus::tools {

// What scripts can rely on.
enum ExitCode : int {
  exit_ok = 0,
  exit_failed = 1,
  exit_usage = 2,
  exit_timeout = 3,
  exit_absent = 4,
  exit_unreachable = 5,
};

using Run = std::function<int()>;

void add_plan(CLI::App& app, Run& run);

}  // namespace tensorbus::tools
