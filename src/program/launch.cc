// tensorbus launch: a whole push-pull job on this host.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>

#include "observe/show/http.h"
#include "os/io/fd.h"
#include "os/io/poll.h"
#include "os/process/process.h"
#include "program/commands.h"
#include "push_pull/job/membership.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::program {
namespace {

struct LaunchOptions {
  push_pull::Job job;
  std::string python;
  std::string metrics;
};

// Between being asked to end and being killed.
constexpr Duration grace = std::chrono::seconds(5);

// The interpreter beside this program as it was called, where a virtual environment has both, or
// the usual one.
std::string default_python() {
  std::string called;
  std::getline(std::ifstream("/proc/self/cmdline"), called, '\0');
  const std::filesystem::path beside = std::filesystem::path(called).parent_path() / "python";
  return called.find('/') != std::string::npos && ::access(beside.c_str(), X_OK) == 0
             ? beside.string()
             : "python3";
}

// A child whose output goes line by line, with its name, to ours.
class Node {
 public:
  Node(std::string name, const std::function<void()>& body) : name_(std::move(name)) {
    std::array<int, 2> out{};
    if (::pipe2(out.data(), O_CLOEXEC) != 0) os::throw_errno("pipe");
    output_ = os::Fd(out[0]);
    const os::Fd theirs(out[1]);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) os::throw_errno("fork");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      sigset_t none;
      ::sigemptyset(&none);
      ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
      ::dup2(theirs.get(), STDOUT_FILENO);
      ::dup2(theirs.get(), STDERR_FILENO);
      try {
        body();
      } catch (...) {
        std::cerr << current_exception_status().message << std::endl;
        ::_exit(exit_failed);
      }
      ::_exit(exit_ok);
    }
    ended_ = os::open_pidfd(pid_);
    ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() {
    if (running()) {
      signal(SIGKILL);
      reap();
    }
  }

  const std::string& name() const noexcept { return name_; }
  bool running() const noexcept { return pid_ > 0; }
  int output() const noexcept { return output_.get(); }
  int ended() const noexcept { return ended_.get(); }
  void signal(int number) const noexcept {
    if (running()) ::kill(pid_, number);
  }

  // The exit code of the process; 128 + n if signal n ended it.
  int reap() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    ended_.reset();
    print(true);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  // Prints what the process has written; at its end also a line without an end.
  void print(bool all = false) {
    std::array<char, 4096> buffer;
    ssize_t got = 0;
    while ((got = ::read(output_.get(), buffer.data(), buffer.size())) > 0) {
      text_.append(buffer.data(), static_cast<std::size_t>(got));
    }
    if (got == 0) output_.reset();
    if (all && !text_.empty() && text_.back() != '\n') text_ += '\n';
    for (std::size_t end = 0; (end = text_.find('\n')) != std::string::npos;) {
      std::cout << fmt::format("[{}] {}\n", name_, text_.substr(0, end));
      text_.erase(0, end + 1);
    }
    std::cout.flush();
  }

 private:
  std::string name_;
  pid_t pid_ = -1;
  os::Fd output_;
  os::Fd ended_;
  std::string text_;
};

// Job after job, as often as the script says init() and stop().
void schedule(push_pull::NodeOptions options, const os::Fd& port) {
  options.deadline = Deadline::never();
  for (bool first = true;; first = false) {
    push_pull::Scheduler scheduler(options);
    options.job.port = scheduler.port();
    if (first && ::write(port.get(), &options.job.port, sizeof options.job.port) < 0) return;
    scheduler.wait_for_all(Deadline::never());
    scheduler.stop(Deadline::never());
  }
}

std::uint16_t read_port(const os::Fd& from) {
  std::uint16_t port = 0;
  if (::read(from.get(), &port, sizeof port) != sizeof port) {
    throw Error(Code::failed, "the scheduler did not start");
  }
  return port;
}

void run_script(const LaunchOptions& options, push_pull::Role role, int rank,
                const std::vector<std::string>& script) {
  const auto set = [](const char* name, const auto& value) {
    ::setenv(name, fmt::format("{}", value).c_str(), 1);
  };
  // Left over from elsewhere they would contradict.
  for (const char* name :
       {"DMLC_RANK_OFFSET", "DMLC_INSTANCE_ID", "DMLC_NODE_HOST", "DMLC_INTERFACE"}) {
    ::unsetenv(name);
  }
  set("DMLC_ROLE", push_pull::to_string(role));
  set("DMLC_NUM_WORKER", options.job.workers);
  set("DMLC_NUM_SERVER", options.job.servers);
  set("DMLC_GROUP_SIZE", options.job.group_size);
  set("DMLC_NODE_RANK", rank / options.job.group_size);
  set("STEPMESH_GPU", rank % options.job.group_size);
  set("DMLC_PS_ROOT_URI", options.job.host);
  set("DMLC_PS_ROOT_PORT", options.job.port);
  set("PYTHONUNBUFFERED", 1);
  if (!options.metrics.empty()) set("TENSORBUS_METRICS", options.metrics);
  std::vector<std::string> words{options.python, "-m", "tensorbus.fserver"};
  words.insert(words.end(), script.begin(), script.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  os::throw_errno("cannot run " + options.python);
}

// Signals that ask us to end, as a descriptor.
os::Fd ending_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  os::Fd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) os::throw_errno("signalfd");
  return fd;
}

// Watches until all processes have ended. The first failure ends the others; the code of that
// failure is the result.
int watch(std::vector<std::unique_ptr<Node>>& nodes, const os::Fd& signals) {
  int result = exit_ok;
  Deadline kill_at = Deadline::never();
  const auto end_all = [&](int code, int signal) {
    if (result == exit_ok) result = code;
    for (const auto& node : nodes) node->signal(signal);
    if (kill_at.is_never()) kill_at = Deadline::after(grace);
  };
  const auto running = [&] {
    return std::ranges::any_of(nodes, [](const auto& node) { return node->running(); });
  };
  while (running()) {
    std::vector<pollfd> fds{{signals.get(), POLLIN, 0}};
    for (const auto& node : nodes) {
      fds.push_back({node->output(), POLLIN, 0});
      fds.push_back({node->ended(), POLLIN, 0});
    }
    os::sleep_ready(fds, kill_at);
    if (kill_at.expired()) {
      for (const auto& node : nodes) node->signal(SIGKILL);
      kill_at = Deadline::never();
    }
    if (fds[0].revents != 0) {
      signalfd_siginfo info{};
      if (::read(signals.get(), &info, sizeof info) == sizeof info) {
        end_all(128 + static_cast<int>(info.ssi_signo), static_cast<int>(info.ssi_signo));
      }
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      Node& node = *nodes[i];
      if (fds[1 + 2 * i].revents != 0) node.print();
      if (fds[2 + 2 * i].revents == 0 || !node.running()) continue;
      if (const int code = node.reap(); code != 0) {
        if (result == exit_ok) {
          std::cerr << fmt::format("tensorbus: {} failed with code {}; the others are ended\n",
                                   node.name(), code);
        }
        end_all(code, SIGTERM);
      }
    }
  }
  return result;
}

// What every node would say, said once.
void check_script(const std::vector<std::string>& script) {
  if (script.empty()) {
    throw Error(Code::invalid_argument, "which script is to be run? See tensorbus launch --help");
  }
  if (std::error_code error; std::filesystem::is_regular_file(script.front(), error)) return;
  throw Error(Code::invalid_argument,
              script.front().starts_with('-')
                  ? script.front() + " is no option of launch; see tensorbus launch --help"
                  : "there is no script " + script.front());
}

// Every node has a page of its own: at one port after the other, or at free ones.
std::string page_of_node(const std::string& address, std::size_t node) {
  if (address.empty()) return "";
  const observe::PageAddress first = observe::parse_page_address(address);
  if (first.port == 0) return address;
  const std::size_t port = first.port + node;
  if (port > 65535) {
    throw Error(Code::invalid_argument,
                fmt::format("--metrics {} leaves no port for node {}; begin lower, or with port 0",
                            address, node));
  }
  return fmt::format("{}:{}", address.substr(0, address.rfind(':')), port);
}

int launch(LaunchOptions options, const std::vector<std::string>& script) {
  check_script(script);
  push_pull::check(options.job);
  if (options.python.empty()) options.python = default_python();
  const os::Fd signals = ending_signals();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) os::throw_errno("pipe");
  const os::Fd port_read(ends[0]);
  os::Fd port_write(ends[1]);
  push_pull::NodeOptions scheduler_options;
  scheduler_options.job = options.job;
  Node scheduler("scheduler", [&] { schedule(scheduler_options, port_write); });
  port_write.reset();
  options.job.port = read_port(port_read);

  std::vector<std::unique_ptr<Node>> nodes;
  for (const push_pull::Role role : {push_pull::Role::server, push_pull::Role::worker}) {
    const int groups = role == push_pull::Role::server ? options.job.servers : options.job.workers;
    for (int rank = 0; rank < groups * options.job.group_size; ++rank) {
      LaunchOptions own = options;
      own.metrics = page_of_node(options.metrics, nodes.size());
      nodes.push_back(std::make_unique<Node>(fmt::format("{} {}", push_pull::to_string(role), rank),
                                             [&] { run_script(own, role, rank, script); }));
    }
  }
  const int result = watch(nodes, signals);
  scheduler.print();
  return result;
}

// The script is what remains, which the usual formatter does not know of.
class Formatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string name) const override {
    return "Usage: " + name + " [OPTIONS] SCRIPT [ARGUMENTS]\n";
  }
};

}  // namespace

void add_launch(CLI::App& app, Run& run) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* command = app.add_subcommand(
      "launch", "Run a push-pull script on this host: a scheduler, and the script in every role");
  command->add_option("--workers", options->job.workers, "Worker groups")->capture_default_str();
  command->add_option("--servers", options->job.servers, "Server groups")->capture_default_str();
  command->add_option("--group-size", options->job.group_size, "Instances per group")
      ->capture_default_str();
  command->add_option("--python", options->python,
                      "The interpreter (default: the one beside this)");
  command->add_option("--metrics", options->metrics,
                      "HOST:PORT of the first node's page of metrics for Prometheus; the others "
                      "have the ports after it. Port 0: free ones, which their logs name");
  command->prefix_command();
  command->formatter(std::make_shared<Formatter>());
  command->footer(
      "What follows the options is the script and its arguments. Its lines of output carry the\n"
      "name of the node; when one fails the others are ended, and its code is the result.\n\n"
      "Example:\n"
      "  tensorbus launch --workers 2 --servers 1 examples/push_pull/attention_ffn.py --steps 10");
  command->callback([options, command, &run] {
    run = [options, command] { return launch(*options, command->remaining()); };
  });
}

}  // namespace tensorbus::program
