// tensorbus kv: the store for people and scripts.
#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <iterator>
#include <memory>
#include <optional>

#include "base/config.h"
#include "bus/directory/records.h"
#include "bus/report/status_record.h"
#include "program/commands.h"
#include "tensorbus/store.h"

namespace tensorbus::program {
namespace {

// What all kv commands share.
struct KvOptions {
  std::string url;
  std::string space = "default";
  std::string component = "tensorbus";
  std::string token_file;
  double timeout = 30;

  Deadline deadline() const { return Deadline::after_seconds(timeout); }
  // For what an answer takes: a timeout of 0 says not to wait for keys, the store is asked all the
  // same.
  Deadline patience() const { return timeout == 0 ? Deadline::after_seconds(5) : deadline(); }
};

class Session {
 public:
  explicit Session(const KvOptions& options)
      : url_(StoreUrl::parse(url_of(options))),
        scope_(url_.space_or(options.space), options.component),
        store_(tensorbus::connect(url_, {options.patience(), read_token(options.token_file)})) {}
  ~Session() { store_->close(true); }

  Store* operator->() const { return store_.get(); }
  std::string full(const std::string& key) const { return scope_.full(key); }
  std::string local(const std::string& key) const { return std::string(scope_.local(key)); }

 private:
  static std::string url_of(const KvOptions& options) {
    if (!options.url.empty()) return options.url;
    if (const auto url = config::variable("TENSORBUS_STORE")) return *url;
    throw Error(Code::invalid_argument,
                "which store? give --store URL or set TENSORBUS_STORE (for example "
                "tensorbus://127.0.0.1:29500)");
  }

  StoreUrl url_;
  KeyScope scope_;
  std::unique_ptr<Store> store_;
};

struct Arguments {
  KvOptions options;
  std::string key;
  std::string value;
  std::string member;
  std::vector<std::string> candidates;
  std::size_t count = 1;
  std::size_t events = 0;
  bool has_value = false;
  bool current = false;
  bool readable = false;
};

// Of what agents keep in the store: lines for people. Nothing for other values.
std::optional<std::string> lines_of(const Arguments& arguments, const std::string& value) {
  const bool shown = arguments.options.component == bus::component_of_status;
  if (!shown && arguments.options.component != bus::component_of_records) return std::nullopt;
  const auto key = shown ? std::nullopt : bus::parse_key(arguments.key);
  if (!shown && !key) return std::nullopt;
  try {
    if (shown) return bus::print_status(value);
    return bus::print_record(*key, value);
  } catch (const Error&) {
    if (arguments.readable) throw;
    return std::nullopt;
  }
}

int get(const Arguments& arguments) {
  const Session session(arguments.options);
  const std::vector<std::string> keys{session.full(arguments.key)};
  const auto value = session->get(keys, arguments.options.patience()).front();
  if (!value) {
    std::cerr << fmt::format("tensorbus: key \"{}\" is absent\n", arguments.key);
    return exit_absent;
  }
  // A person wants to read it, with the prompt on a line of its own; a pipe wants the bytes.
  const bool person = ::isatty(STDOUT_FILENO) != 0;
  const auto lines = arguments.readable || person ? lines_of(arguments, *value) : std::nullopt;
  std::cout << lines.value_or(*value);
  if (person && !lines && !value->ends_with('\n')) std::cout << '\n';
  return exit_ok;
}

int set(const Arguments& arguments) {
  std::string value = arguments.value;
  if (value == "-") value.assign(std::istreambuf_iterator<char>(std::cin), {});
  const Session session(arguments.options);
  const Entry entry{session.full(arguments.key), std::move(value)};
  session->set({&entry, 1}, arguments.options.patience());
  return exit_ok;
}

int erase(const Arguments& arguments) {
  const Session session(arguments.options);
  if (session->erase(session.full(arguments.key), arguments.options.patience())) return exit_ok;
  std::cerr << fmt::format("tensorbus: key \"{}\" is absent\n", arguments.key);
  return exit_absent;
}

int list(const Arguments& arguments) {
  const Session session(arguments.options);
  for (const std::string& key :
       session->list(session.full(arguments.key), arguments.options.patience())) {
    std::cout << session.local(key) << '\n';
  }
  return exit_ok;
}

int watch(const Arguments& arguments) {
  const Session session(arguments.options);
  const auto watching =
      session->watch(session.full(arguments.key), arguments.current, arguments.options.patience());
  for (std::size_t seen = 0; arguments.events == 0 || seen < arguments.events; ++seen) {
    const StoreEvent event = watching->next(Deadline::never());
    const bool put = event.kind == StoreEvent::Kind::put;
    std::cout << (put ? "put " : "delete ") << session.local(event.key);
    if (put) std::cout << ' ' << event.value;
    std::cout << std::endl;
  }
  return exit_ok;
}

int wait(const Arguments& arguments) {
  const Session session(arguments.options);
  Condition condition;
  condition.key = session.full(arguments.key);
  condition.is_pattern = arguments.key.find_first_of("*?[") != std::string::npos;
  condition.count = arguments.count;
  if (arguments.has_value) condition.value = arguments.value;
  for (const std::string& key : arguments.candidates) {
    condition.candidates.push_back(session.full(key));
  }
  const WaitResult result = session->wait(condition, arguments.options.deadline());
  for (const std::string& key : result.keys) std::cout << session.local(key) << '\n';
  return exit_ok;
}

int barrier(const Arguments& arguments) {
  const Session session(arguments.options);
  std::string member = arguments.member;
  if (member.empty()) {
    member = config::variable("RANK").value_or(fmt::format("pid {}", ::getpid()));
  }
  session->barrier(session.full(arguments.key), arguments.count, member,
                   arguments.options.deadline());
  return exit_ok;
}

}  // namespace

void add_kv(CLI::App& app, Run& run) {
  CLI::App* kv = app.add_subcommand("kv", "Read, write and wait for values in a store");
  kv->require_subcommand(1);
  kv->footer(
      "URLs: tensorbus://HOST[:PORT] (ours), tcpstore://HOST[:PORT] (torch's), "
      "etcd://[USER:PASSWORD@]HOST[:PORT][,HOST:PORT...]; /NAMESPACE may follow.\n"
      "Exit codes: 0 ok, 1 failed, 2 usage, 3 timeout, 4 absent, 5 unreachable.\n\n"
      "Examples:\n"
      "  export TENSORBUS_STORE=tensorbus://127.0.0.1:29500\n"
      "  tensorbus kv set rank/0 ready\n"
      "  tensorbus kv wait 'rank/*' --count 4 --value ready --timeout 60\n"
      "  tensorbus kv barrier start 4 --member 0\n"
      "  tensorbus kv watch rank/ --current\n"
      "  tensorbus kv get agent/0 --component bus --readable   # what agent 0 says of itself");

  const auto command = [&](const char* name, const char* help, int (*action)(const Arguments&)) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* sub = kv->add_subcommand(name, help);
    KvOptions& options = arguments->options;
    sub->add_option("--store", options.url, "Store URL (default: $TENSORBUS_STORE)");
    sub->add_option("--namespace", options.space, "First part of the full key")
        ->capture_default_str();
    sub->add_option("--component", options.component, "Second part of the full key")
        ->capture_default_str();
    sub->add_option("--token-file", options.token_file,
                    "File, readable by you alone, whose first line is the token that you and the "
                    "server must prove (default: $TENSORBUS_TOKEN)");
    sub->add_option("--timeout", options.timeout, "Seconds until giving up; 0 looks once")
        ->capture_default_str();
    sub->callback(
        [arguments, action, &run] { run = [arguments, action] { return action(*arguments); }; });
    return std::pair(sub, arguments);
  };

  auto [getting, get_arguments] = command("get", "Print a value; exit code 4 if absent", &get);
  getting->add_option("key", get_arguments->key, "Key")->required();
  getting->add_flag("--readable", get_arguments->readable,
                    "Print what agents keep there (--component bus) as names and values, as on a "
                    "terminal; else a pipe gets the bytes");

  auto [setting, set_arguments] = command("set", "Set a value", &set);
  setting->add_option("key", set_arguments->key, "Key")->required();
  setting->add_option("value", set_arguments->value, "Value; - reads it from standard input")
      ->required();

  auto [erasing, erase_arguments] = command("delete", "Delete a key; 4 if absent", &erase);
  erasing->add_option("key", erase_arguments->key, "Key")->required();

  auto [listing, list_arguments] =
      command("list", "Print the keys that start with a prefix", &list);
  listing->add_option("prefix", list_arguments->key, "Prefix");

  auto [watching, watch_arguments] = command("watch", "Print changes as they happen", &watch);
  watching->add_option("prefix", watch_arguments->key, "Prefix");
  watching->add_flag("--current", watch_arguments->current, "First what is there");
  watching->add_option("--count", watch_arguments->events, "End after this many (0: never)")
      ->check(whole_number(0));
  watching->get_option("--timeout")->description("Seconds to reach the store; then it has no end");

  auto [waiting, wait_arguments] =
      command("wait", "Wait until keys exist, or hold a value; print them", &wait);
  waiting->add_option("key", wait_arguments->key, "Key, or pattern with * ? [..]")->required();
  waiting->add_option("--count", wait_arguments->count, "How many keys must match the pattern")
      ->capture_default_str()
      ->check(whole_number(0));
  waiting->add_option("--value", wait_arguments->value, "The value they must hold")
      ->each([held = wait_arguments](const std::string&) { held->has_value = true; });
  waiting->add_option("--candidate", wait_arguments->candidates,
                      "A key the pattern may match; needed for tcpstore:// only");

  auto [entering, barrier_arguments] =
      command("barrier", "Wait until N members have arrived", &barrier);
  entering->add_option("name", barrier_arguments->key, "Barrier")->required();
  entering->add_option("n", barrier_arguments->count, "Members")
      ->required()
      ->check(whole_number(1));
  entering->add_option("--member", barrier_arguments->member,
                       "Who we are, for messages (default: $RANK, else the pid)");
}

}  // namespace tensorbus::program
