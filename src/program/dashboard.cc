// tensorbus dashboard: a live page about a job.
#include <fmt/format.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/secret.h"
#include "observe/show/http.h"
#include "os/process/interruptible.h"
#include "os/process/process.h"
#include "program/commands.h"
#include "program/look/board.h"
#include "program/look/job.h"
#include "program/look/plan_picture.h"

namespace tensorbus::program {
namespace {

// The page, made of the files in page/ when the program is built.
constexpr char page_text[] =
#include "program_page.inc"
    ;

struct DashboardOptions {
  JobPlace place;
  std::string bind = "127.0.0.1:9401";
  std::string page_token;
  std::string page_token_file;
};

constexpr Duration look_every = std::chrono::milliseconds(500);

// Looks at the job on a thread of its own, so that no visitor waits for the store.
class Lookout {
 public:
  explicit Lookout(const JobPlace& place)
      : job_(place, read_token(place.token_file)),
        records_(place, read_token(place.token_file)),
        board_(job_.space(), job_.store_url()),
        thread_([this] { run(); }) {}
  ~Lookout() {
    stop();
    thread_.join();
  }
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  std::string state() {
    const Lock lock(mutex_);
    return state_;
  }
  // On the visitor's thread, and for one visitor at a time: it may take seconds, and the pages have
  // few threads. Nothing: another one is being made.
  std::optional<std::string> picture(const std::string& batch, const std::string& side) {
    if (drawing_.exchange(true)) return std::nullopt;
    const std::shared_ptr<void> drawn(nullptr, [this](void*) { drawing_ = false; });
    const os::Interruptible interruptible(interruption_);
    return plan_picture(records_.records(), batch, side, interruption_);
  }
  // Whatever waits for the store, or is being made, ends.
  void stop() {
    {
      const Lock lock(mutex_);
      stopping_ = true;
    }
    interruption_.interrupt("the dashboard stops");
    wake_.notify_all();
  }

 private:
  void run() {
    os::block_signals_in_this_thread();
    const os::Interruptible interruptible(interruption_);
    Lock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      look();
      std::string state = board_.to_json();
      lock.lock();
      state_ = std::move(state);
      wake_.wait_for(lock, look_every, [this]() REQUIRES(mutex_) { return stopping_; });
    }
  }

  void look() {
    try {
      board_.see(job_.look(), wall_clock_ns());
    } catch (...) {
      board_.lose(current_exception_status().message, wall_clock_ns());
    }
  }

  os::Interruption interruption_;
  JobSight job_;
  std::atomic<bool> drawing_{false};
  JobSight records_;  // of whoever draws
  Board board_;
  Mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::string state_ GUARDED_BY(mutex_) = board_.to_json();
  std::thread thread_;
};

observe::PageAnswer picture_answer(Lookout& lookout, const observe::PageRequest& request) {
  const auto value = [&](const char* name) {
    const auto found = request.parameters.find(name);
    return found == request.parameters.end() ? std::string() : found->second;
  };
  try {
    const auto picture = lookout.picture(value("batch"), value("side"));
    if (!picture) return {"busy: a plan is being drawn\n", "text/plain; charset=utf-8", 503};
    return {*picture, "image/svg+xml"};
  } catch (const Error& error) {
    return {error.what(), "text/plain; charset=utf-8", 404};
  }
}

bool is_let_in(const std::optional<std::string>& token, const observe::PageRequest& request) {
  return !token || proofs_equal(request.authorization, "Bearer " + *token);
}

observe::Pages pages_of(Lookout& lookout, const std::optional<std::string>& token) {
  // Nothing is loaded from anywhere else, whatever a name in a record looks like.
  const std::map<std::string, std::string> headers{
      {"Content-Security-Policy",
       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
       "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"},
      {"Cache-Control", "no-store"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"}};
  return {
      {"/",
       [headers](const observe::PageRequest&) {
         return observe::PageAnswer{page_text, "text/html; charset=utf-8", 200, headers};
       }},
      {"/state.json",
       [headers, token, &lookout](const observe::PageRequest& request) {
         if (!is_let_in(token, request)) {
           return observe::PageAnswer{"{}", "application/json", 401, headers};
         }
         return observe::PageAnswer{lookout.state(), "application/json", 200, headers};
       }},
      {"/plan.svg",
       [headers, token, &lookout](const observe::PageRequest& request) {
         observe::PageAnswer answer{"", "text/plain", 401};
         if (is_let_in(token, request)) answer = picture_answer(lookout, request);
         answer.headers = headers;
         return answer;
       }},
  };
}

int serve_dashboard(const DashboardOptions& options) {
  // Blocked before any thread exists, so that they come to sigwait() below.
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const auto token = options.page_token.empty() ? read_token(options.page_token_file)
                                                : std::optional(options.page_token);
  const observe::PageAddress address = observe::parse_page_address(options.bind);
  Lookout lookout(options.place);
  const observe::HttpServer server(address, pages_of(lookout, token));
  if (!token && address.host != "127.0.0.1" && address.host != "::1") {
    log::warn("{} asks for no token: everybody who can reach it sees the job", server.url());
  }
  std::cout << "ready " << server.url() << "/" << std::endl;
  int signal = 0;
  ::sigwait(&signals, &signal);
  lookout.stop();  // whom the server waits for
  return exit_ok;
}

}  // namespace

void add_dashboard(CLI::App& app, Run& run) {
  auto options = std::make_shared<DashboardOptions>();
  CLI::App* command = app.add_subcommand("dashboard", "Serve a live page about a job");
  add_job_options(*command, options->place);
  command->add_option("--bind", options->bind, "HOST:PORT of the page; port 0 picks a free one")
      ->capture_default_str();
  command->add_option("--token", options->page_token,
                      "What visitors must enter; users of this host can read it in the list of "
                      "processes, and not with --page-token-file");
  command->add_option("--page-token-file", options->page_token_file,
                      "File whose first line visitors must enter");
  command->footer(
      "Prints \"ready URL\" when the page can be opened; Ctrl-C stops it. The page reads what\n"
      "agents write to the store, and asks no agent for anything.\n\n"
      "Example:\n"
      "  tensorbus dashboard --store tensorbus://127.0.0.1:29500");
  command->callback([options, &run] { run = [options] { return serve_dashboard(*options); }; });
}

}  // namespace tensorbus::program
