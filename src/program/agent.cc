// tensorbus agent: serves the workers of one rank, or of several on one host, until told to stop.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "bus/files/dump.h"
#include "bus/files/paths.h"
#include "bus/host/daemon.h"
#include "copy/thread_count.h"
#include "fabric/core/port_range.h"
#include "os/io/fd.h"
#include "program/commands.h"
#include "tensorbus/store.h"

namespace tensorbus::program {
namespace {

struct AgentOptions {
  std::string store;
  Rank rank = 0;
  Rank world_size = 0;
  std::string space;
  std::string queue;
  std::string state;
  std::string bind;
  std::string ports;
  std::optional<std::int64_t> copy_threads;
  std::string metrics;
  Reached reached;
  std::string dump;
  int spawn = 1;
  std::optional<double> retain;
  double timeout = 60;
};

constexpr std::string_view rank_mark = "{rank}";
// The nanoseconds of this time still fit.
constexpr double longest_retain = 1e9;

std::string path_for(std::string path, Rank rank, std::string (*fallback)(Rank)) {
  if (path.empty()) return fallback(rank);
  const std::size_t at = path.find(rank_mark);
  if (at != std::string::npos) path.replace(at, rank_mark.size(), std::to_string(rank));
  return path;
}

void check(const AgentOptions& options) {
  const auto refuse = [](const std::string& why) { throw Error(Code::invalid_argument, why); };
  if (options.store.empty()) refuse("no store: give --store URL or set TENSORBUS_STORE");
  if (options.spawn < 1) refuse("--spawn is the number of agents, 1 or more");
  if (options.rank < 0 || options.rank + options.spawn > options.world_size) {
    refuse(fmt::format("ranks {} to {} do not fit --world-size {}", options.rank,
                       options.rank + options.spawn - 1, options.world_size));
  }
  if (options.retain && !(*options.retain >= 0 && *options.retain <= longest_retain)) {
    refuse("--retain is a number of seconds, from 0 to 1e9; without it nothing is forgotten");
  }
  if (options.spawn > 1 && !options.metrics.empty() && !options.metrics.ends_with(":0")) {
    refuse("--metrics with --spawn needs port 0: every agent has a page of its own");
  }
  for (const std::string& path : {options.queue, options.state}) {
    if (options.spawn > 1 && !path.empty() && path.find(rank_mark) == std::string::npos) {
      refuse(fmt::format("{} would be shared by {} agents; write {} where their rank belongs", path,
                         options.spawn, rank_mark));
    }
  }
}

sigset_t stop_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&signals, signal);
  return signals;
}

int serve(const AgentOptions& options) {
  // Blocked before any thread exists, so that they come to sigwait() alone.
  const sigset_t signals = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const StoreUrl url = StoreUrl::parse(options.store);
  const Deadline deadline = Deadline::after_seconds(options.timeout);
  ConnectOptions connecting;
  connecting.deadline = deadline;
  const std::shared_ptr<Store> store = connect(url, connecting);

  bus::DaemonOptions daemon;
  daemon.rank = options.rank;
  daemon.space = url.space_or(options.space);
  daemon.queue_path = path_for(options.queue, options.rank, bus::default_queue_path);
  daemon.state_path = path_for(options.state, options.rank, bus::default_state_path);
  daemon.bind = options.bind;
  daemon.ports = fabric::parse_port_range(options.ports);
  if (options.retain) {
    daemon.retain =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*options.retain));
  }
  daemon.copy_threads = options.copy_threads;
  if (!options.metrics.empty()) daemon.metrics = options.metrics;
  daemon.reached = options.reached;
  bus::Daemon agent(store, daemon, deadline);

  std::thread stopper([&] {
    int signal = 0;
    ::sigwait(&signals, &signal);
    log::info("stopping on signal {}", signal);
    agent.stop();
  });
  std::cout << "ready rank " << options.rank << " " << daemon.queue_path << std::endl;
  Status failure;
  try {
    agent.run();
  } catch (...) {
    failure = current_exception_status();
    ::kill(::getpid(), SIGTERM);
  }
  stopper.join();
  agent.close(false);
  store->close(true);
  if (!failure.ok()) throw Error(failure);
  log::info("agent {} has stopped; its files stay for the next one", options.rank);
  return exit_ok;
}

// One process per agent: a crash of one agent is not the end of the others.
int serve_several(const AgentOptions& options) {
  const sigset_t signals = stop_signals();
  sigset_t all = signals;
  ::sigaddset(&all, SIGCHLD);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::map<pid_t, Rank> children;
  const pid_t parent = ::getpid();
  for (int i = 0; i < options.spawn; ++i) {
    const pid_t child = ::fork();
    if (child < 0) os::throw_errno("fork");
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (::getppid() != parent) ::_exit(exit_failed);
      AgentOptions own = options;
      own.rank = options.rank + i;
      log::set_sink_to_stderr_as(fmt::format("agent {}", own.rank));
      try {
        ::_exit(serve(own));
      } catch (...) {
        const Status status = current_exception_status();
        log::error("{}", status.message);
        ::_exit(exit_failed);
      }
    }
    children.emplace(child, options.rank + i);
  }
  int result = exit_ok;
  while (!children.empty()) {
    int signal = 0;
    ::sigwait(&all, &signal);
    if (signal != SIGCHLD) {
      for (const auto& [pid, rank] : children) ::kill(pid, SIGTERM);
      continue;
    }
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (status != 0) {
        log::error("agent {} ended with {} {}", children[pid],
                   WIFSIGNALED(status) ? "signal" : "exit code",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        result = exit_failed;
      }
      children.erase(pid);
    }
  }
  return result;
}

int run_agents(AgentOptions options) {
  if (!options.dump.empty()) {
    std::cout << bus::dump_agent_file(options.dump);
    return exit_ok;
  }
  raise_descriptor_limit();
  if (options.store.empty()) options.store = config::variable("TENSORBUS_STORE").value_or("");
  if (options.space.empty()) {
    options.space = config::variable("TENSORBUS_NAMESPACE").value_or("default");
  }
  if (options.bind.empty()) options.bind = config::variable("TENSORBUS_BIND").value_or("");
  check(options);
  fabric::parse_port_range(options.ports);
  copy::threads_asked_for(options.copy_threads);
  return options.spawn == 1 ? serve(options) : serve_several(options);
}

}  // namespace

void add_agent(CLI::App& app, Run& run, const Reached& reached) {
  auto options = std::make_shared<AgentOptions>();
  options->reached = reached;
  CLI::App* command = app.add_subcommand(
      "agent", "Serve the workers of one rank: take their commands and move their tensors");
  command->add_option("--store", options->store,
                      "Store where agents find each other (default: $TENSORBUS_STORE)");
  command->add_option("--rank", options->rank, "Rank of this agent, the first with --spawn");
  command->add_option("--world-size", options->world_size, "How many agents there are in all");
  command->add_option(
      "--namespace", options->space,
      "Keeps jobs on one store apart (default: $TENSORBUS_NAMESPACE or \"default\")");
  command->add_option("--command-queue", options->queue,
                      "LMDB file of accepted commands; workers connect to PATH.sock (default: "
                      "agent_rank{rank}_command.lmdb in $TENSORBUS_STATE_DIR or /tmp)");
  command->add_option("--state", options->state,
                      "LMDB file of pairs, batches and the heartbeat (default: "
                      "agent_rank{rank}_state.lmdb in $TENSORBUS_STATE_DIR or /tmp)");
  command->add_option("--bind", options->bind,
                      "Address of this machine on which agents of other hosts reach this one "
                      "(default: $TENSORBUS_BIND; without: this host only)");
  command->add_option("--ports", options->ports,
                      "Ports A-B that may be listened on there; some more than agents (default: "
                      "$TENSORBUS_PORTS; without: any)");
  command->add_option("--retain", options->retain,
                      "Seconds for which what a worker has published can be pulled after the "
                      "worker is gone (default: until it is published again, or the agent ends)");
  command->add_option("--copy-threads", options->copy_threads,
                      "Threads that copy for a rank, 1 to 8 (default: $TENSORBUS_COPY_THREADS; "
                      "without: the cores, divided by the agents of this host)");
  command->add_option("--metrics", options->metrics, metrics_help);
  command->add_option("--dump", options->dump,
                      "Print the command queue or state FILE of an agent, which may be running, as "
                      "names and values, and do nothing else");
  command->add_option("--spawn", options->spawn, "Start this many agents, counting up from --rank")
      ->capture_default_str();
  command->add_option("--timeout", options->timeout, "Seconds to wait for the store")
      ->capture_default_str();
  command->footer(
      "Prints \"ready rank N PATH\" when workers can connect; SIGTERM or Ctrl-C stops it cleanly.\n"
      "The files stay: an agent started again with them goes on with its pairs and batches, and\n"
      "its workers come back by themselves.\n\n"
      "Examples:\n"
      "  tensorbus store &\n"
      "  tensorbus agent --store tensorbus://127.0.0.1:29500 --rank 0 --world-size 4 --spawn 2\n"
      "  AGENT_RANK=0 python trainer.py   # tensorbus.bootstrap_client() finds it\n"
      "  tensorbus agent --dump /tmp/agent_rank0_state.lmdb");
  command->callback([options, command, &run] {
    for (const char* name : {"--rank", "--world-size"}) {
      if (options->dump.empty() && command->count(name) == 0) throw CLI::RequiredError(name);
    }
    run = [options] { return run_agents(*options); };
  });
}

}  // namespace tensorbus::program
