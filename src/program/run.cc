#include "program/run.h"

#include <exception>
#include <iostream>

#include "base/config.h"
#include "base/log.h"
#include "program/commands.h"
#include "program/unknown.h"
#include "tensorbus/status.h"

namespace tensorbus::program {
namespace {

int exit_code(Code code) {
  switch (code) {
    case Code::ok:
      return exit_ok;
    case Code::invalid_argument:
      return exit_usage;
    case Code::timeout:
      return exit_timeout;
    case Code::unreachable:
      return exit_unreachable;
    default:
      return exit_failed;
  }
}

}  // namespace

int run_program(int argc, char** argv, const Reached& reached) {
  log::set_sink_to_stderr();
  config::start();
  CLI::App app("Moves tensors between processes that lay them out differently.", "tensorbus");
  app.set_version_flag("--version", "tensorbus " TENSORBUS_VERSION);
  app.require_subcommand(1);
  app.footer("Exit codes: 0 ok, 1 failed, 2 usage, 3 timeout, 4 absent, 5 unreachable.");

  Run run;
  add_store(app, run);
  add_kv(app, run);
  add_plan(app, run);
  add_doctor(app, run);
  add_agent(app, run, reached);
  add_launch(app, run);
  add_status(app, run);
  add_dashboard(app, run);
  add_trace(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    if (const auto unknown = unknown_word(app, {argv + 1, argv + argc})) {
      std::cerr << "tensorbus: " << *unknown << "\nRun with --help for more information.\n";
      return exit_usage;
    }
    app.exit(error);
    return exit_usage;
  }
  try {
    return run();
  } catch (...) {
    const Status status = current_exception_status();
    std::cerr << "tensorbus: " << status.message << '\n';
    return exit_code(status.code);
  }
}

}  // namespace tensorbus::program
