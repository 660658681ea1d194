// tensorbus store: serves the rendezvous store until it is told to stop.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>

#include "base/config.h"
#include "base/log.h"
#include "base/mutex.h"
#include "observe/registry.h"
#include "observe/show/metrics_page.h"
#include "program/commands.h"
#include "tensorbus/store.h"

namespace tensorbus::program {
namespace {

struct StoreOptions {
  StoreServerOptions server;
  std::string token_file;
  std::string metrics;
};

bool is_loopback(std::string_view host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

void warn_of_strangers(const StoreServerOptions& options, const std::string& url) {
  if (options.token && !options.allow_torch) return;
  log::warn(
      "{} asks {} for no token: {} can read and change everything in it, also the secret by which "
      "the agents of a bus know each other; --token-file keeps strangers out",
      url, options.token ? "torch clients" : "its clients",
      is_loopback(options.host) ? "every user of this host" : "everybody who can reach it");
}

void collect(observe::Families& families, const StoreServerStats& stats) {
  const auto add = [&](observe::MetricKind kind, const char* name, const char* help, auto value) {
    families.add(kind, name, help, {}, static_cast<double>(value));
  };
  using enum observe::MetricKind;
  add(gauge, "tensorbus_store_connections", "Clients that are connected.", stats.connections);
  add(counter, "tensorbus_store_accepted", "Clients that have connected.", stats.accepted);
  add(counter, "tensorbus_store_requests", "Requests answered.", stats.requests);
  add(counter, "tensorbus_store_refused", "Requests that were malformed or too large.",
      stats.refused);
  add(gauge, "tensorbus_store_keys", "Keys there are.", stats.keys);
  add(gauge, "tensorbus_store_waits", "Clients that wait for keys.", stats.waits);
  add(gauge, "tensorbus_store_request_p50_seconds", "Half of all requests take at most this.",
      stats.request_p50_us / 1e6);
  add(gauge, "tensorbus_store_request_p99_seconds", "99 % of all requests take at most this.",
      stats.request_p99_us / 1e6);
}

// What the server counts, on the page of this process, if there is one.
class StoreNumbers {
 public:
  StoreNumbers(const StoreServer& server, const std::string& address)
      : numbers_(observe::registry().add(
            [&server](observe::Families& families) { collect(families, server.stats()); })),
        page_(observe::open_metrics(address.empty() ? std::nullopt : std::optional(address))) {}

 private:
  std::shared_ptr<void> numbers_;
  std::shared_ptr<observe::HttpServer> page_;
};

int serve(StoreOptions options) {
  raise_descriptor_limit();
  options.server.token = read_token(options.token_file);
  if (!options.server.token) options.server.token = config::variable("TENSORBUS_TOKEN");

  // Blocked before the server's thread exists, so that they come to sigwait() below.
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  Mutex mutex;
  Status failure;
  options.server.on_failure = [&](const Status& status) {
    const Lock lock(mutex);
    failure = status;
    ::kill(::getpid(), SIGTERM);
  };
  StoreServer server(options.server);
  const StoreNumbers numbers(server, options.metrics);
  warn_of_strangers(options.server, server.url());
  std::cout << "ready " << server.url() << std::endl;

  int signal = 0;
  ::sigwait(&signals, &signal);
  server.stop();
  const Lock lock(mutex);
  if (!failure.ok()) throw Error(failure);
  const StoreServerStats stats = server.stats();
  log::info("stopped after {} connections and {} requests", stats.accepted, stats.requests);
  return exit_ok;
}

}  // namespace

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void add_store(CLI::App& app, Run& run) {
  auto options = std::make_shared<StoreOptions>();
  CLI::App* command = app.add_subcommand(
      "store", "Serve the rendezvous store, for tensorbus and torch TCPStore clients");
  command->add_option("--host", options->server.host, "The only address to listen on")
      ->capture_default_str();
  command->add_option("--port", options->server.port, "Port; 0 picks a free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535).description(""));
  command->add_option("--journal", options->server.journal,
                      "File that keeps the state: a restarted server has lost nothing it "
                      "acknowledged");
  command->add_option("--token-file", options->token_file,
                      "File whose first line is the token that clients must prove; nobody else "
                      "may be able to read it (default: $TENSORBUS_TOKEN)");
  command->add_flag("--allow-torch", options->server.allow_torch,
                    "Admit torch clients although a token is set (they cannot prove it)");
  command->add_option("--metrics", options->metrics, metrics_help);
  command->footer(
      "Prints \"ready URL\" when it serves; SIGTERM or Ctrl-C stops it cleanly.\n\n"
      "Examples:\n"
      "  tensorbus store --host 0.0.0.0 --journal /var/lib/tensorbus/store.journal\n"
      "  (umask 077; head -c 24 /dev/urandom | base64 > secret.txt)\n"
      "  tensorbus store --port 0 --token-file secret.txt\n\n"
      "Without a token every user of this host, or of all hosts that reach it, can use the store.");
  command->callback([options, &run] { run = [options] { return serve(*options); }; });
}

}  // namespace tensorbus::program
