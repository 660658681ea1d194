// The rendezvous store: small values under string keys, and ways to wait for them.
//
// One interface, four backends, chosen by URL (see connect()). All calls are thread safe, block at
// most until their deadline, and end early on close(), on cancel and on Ctrl-C. Watches and leases
// must not outlive the store they came from.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorbus/deadline.h"
#include "tensorbus/status.h"

#pragma GCC visibility push(default)

namespace tensorbus {

inline constexpr std::size_t max_key_size = 8 * 1024;
inline constexpr std::size_t max_value_size = 8 * 1024 * 1024;

// Ends a blocked call from another thread. Outlives the calls it was given to; works once. Its
// mutex is a plain one without annotations (GUARDED_BY and the like), as in all public headers:
// their macros are the library's own, and a user's compiler and warnings should not meet them.
class Cancellation {
 public:
  void cancel();
  // Takes no lock, so it may be asked while holding any.
  bool cancelled() const noexcept { return cancelled_.load(); }

  // While it lives, `wake` is called (on the cancelling thread) when cancel() is; at once if it
  // was.
  class Hook {
   public:
    Hook(Cancellation* cancellation, std::function<void()> wake);
    ~Hook();
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;

   private:
    friend class Cancellation;
    Cancellation* cancellation_;
    std::function<void()> wake_;
  };

 private:
  std::mutex mutex_;
  std::atomic<bool> cancelled_{false};
  std::vector<Hook*> hooks_;
};

struct Entry {
  std::string key;
  std::string value;
  friend bool operator==(const Entry&, const Entry&) = default;
};

// What a wait waits for. The condition must hold at one moment (one revision) to end the wait.
struct Condition {
  // A key, or with `is_pattern` a pattern as in fnmatch: `*` (crosses "/"), `?`, `[..]`.
  std::string key;
  bool is_pattern = false;
  // How many keys must match.
  std::size_t count = 1;
  // If set, only keys with this value match.
  std::optional<std::string> value;
  // The keys a pattern can match: a hint, except for backends that cannot list keys, which need it.
  std::vector<std::string> candidates;
};

struct WaitResult {
  std::vector<std::string> keys;  // sorted, cut to Condition::count
  std::string value;              // of the key, when the condition is not a pattern
};

struct Swap {
  bool swapped = false;
  std::optional<std::string> value;  // what the key holds now
};

struct StoreEvent {
  enum class Kind : std::uint8_t { put, erase };
  Kind kind = Kind::put;
  std::string key;
  std::string value;  // of a put
  std::uint64_t revision = 0;
  friend bool operator==(const StoreEvent&, const StoreEvent&) = default;
};

// What a backend can do beyond the calls that all have.
struct Capabilities {
  bool leases = false;
  bool watches = false;
  bool server_waits = false;  // waits are woken by the server, patterns need no candidates
  bool exactly_once = false;  // a resend after a reconnect applies once
  std::size_t max_value_size = tensorbus::max_value_size;
};

// Changes of keys under a prefix, in order. Changes made while the connection was lost are merged:
// the last state of each key is reported. One reader at a time.
class Watch {
 public:
  virtual ~Watch() = default;
  // Throws Error(timeout) at the deadline; the watch goes on.
  virtual StoreEvent next(Deadline deadline, Cancellation* cancellation = nullptr) = 0;
  // As next(), but all that has come by now: whoever reads in bulk wakes up once for it.
  virtual std::vector<StoreEvent> next_all(Deadline deadline,
                                           Cancellation* cancellation = nullptr) = 0;
  // Ends a blocked next() with Error(cancelled).
  virtual void close() noexcept = 0;
};

// Keys set under a lease vanish when it lapses: its holder died, was cut off for longer than the
// time to live, or revoked it. A handle: the store keeps the lease alive until revoke() or close().
class Lease {
 public:
  virtual ~Lease() = default;
  virtual Duration time_to_live() const noexcept = 0;
  // False once it lapsed or was revoked; setting keys under it is an error then.
  virtual bool alive() const noexcept = 0;
  // Counts the time to live anew. Only needed for a lease made without keep-alive.
  virtual void refresh(Deadline deadline) = 0;
  // Removes its keys now. Does not wait for a server that cannot be reached, Error(unreachable):
  // whatever is thrown, the lease is not renewed any more and lapses by itself.
  virtual void revoke(Deadline deadline) = 0;
};

struct LeaseOptions {
  bool keep_alive = true;
};

class Store {
 public:
  virtual ~Store() = default;

  virtual Capabilities capabilities() const = 0;
  // How this store was reached, without secrets; for messages.
  virtual std::string url() const = 0;

  // Acknowledged: when it returns, every other client sees all entries (they change at one moment).
  virtual void set(std::span<const Entry> entries, Deadline deadline, Lease* lease = nullptr) = 0;
  // One answer per key, in order; nothing for an absent key.
  virtual std::vector<std::optional<std::string>> get(std::span<const std::string> keys,
                                                      Deadline deadline) = 0;
  virtual bool exists(const std::string& key, Deadline deadline) = 0;
  // Whether the key existed.
  virtual bool erase(const std::string& key, Deadline deadline) = 0;
  // Adds to a decimal number (absent counts as 0) and returns the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline) = 0;
  // Sets the key if it holds `expected` (nothing: if it is absent).
  virtual Swap compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                               const std::string& desired, Deadline deadline) = 0;
  // Keys that start with `prefix`, sorted.
  virtual std::vector<std::string> list(const std::string& prefix, Deadline deadline) = 0;

  virtual WaitResult wait(const Condition& condition, Deadline deadline,
                          Cancellation* cancellation = nullptr) = 0;
  // Returns when `count` members are inside; the name can be used again at once. `member` names the
  // caller in the messages of others; a rank (a decimal number) lets them say who is missing.
  virtual void barrier(const std::string& name, std::size_t count, const std::string& member,
                       Deadline deadline, Cancellation* cancellation = nullptr) = 0;
  // Sees every change from this call on; with `current`, first a put for each key there is.
  virtual std::unique_ptr<Watch> watch(const std::string& prefix, bool current,
                                       Deadline deadline) = 0;
  virtual std::shared_ptr<Lease> lease(Duration time_to_live, LeaseOptions options,
                                       Deadline deadline) = 0;

  // Counts this client among the workers that a TCPStore master waits for; nothing elsewhere.
  virtual void join(Deadline deadline) = 0;

  // The server was in this process, which has stopped it: that it is gone is no news.
  virtual bool server_ended_here() const noexcept { return false; }

  // Ends every blocked call with Error(cancelled). With `cleanup`, revokes this client's leases, so
  // that their keys vanish now and not when they lapse. Further calls fail.
  virtual void close(bool cleanup) noexcept = 0;
};

// scheme://[user:password@]host[:port][,host:port...][/namespace]
struct StoreUrl {
  struct Host {
    std::string name;  // IPv6 without brackets
    std::uint16_t port = 0;
    friend bool operator==(const Host&, const Host&) = default;
  };
  enum class Scheme : std::uint8_t { memory, tensorbus, tcpstore, etcd };

  Scheme scheme = Scheme::tensorbus;
  std::string user;
  std::string password;
  std::vector<Host> hosts;  // memory: one, whose name is the store's; several for etcd only
  std::string space;        // the namespace, empty if the URL has none

  // Throws Error(invalid_argument) saying what is wrong. Ports default to 29500 and 2379.
  static StoreUrl parse(std::string_view url);
  // The URL's namespace, else this one. Throws Error(invalid_argument) if both are given (other
  // than "default") and differ.
  std::string space_or(const std::string& given) const;
  // Without user and password.
  std::string to_string() const;
};

struct ConnectOptions {
  Deadline deadline = Deadline::after(std::chrono::seconds(30));
  // Proven to the server, who must prove it too: one that does not ask for it is refused with
  // Error(denied). Never sent. Default: TENSORBUS_TOKEN.
  std::optional<std::string> token;
};

std::unique_ptr<Store> connect(const StoreUrl& url, const ConnectOptions& options = {});

// Our protocol if the server speaks it, else torch's: sends our hello first and falls back when the
// server closes or stays silent for a second. Not with a token, which torch's protocol cannot
// carry.
std::unique_ptr<Store> connect_tcp(const StoreUrl::Host& host, const ConnectOptions& options = {});

// Full names of keys: `{space}/{component}/{key}`.
class KeyScope {
 public:
  // Throws Error(invalid_argument) if one is empty or holds a "/".
  KeyScope(std::string space, std::string component);
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  // A pattern for keys of this scope only, whatever characters its names have.
  std::string full_pattern(std::string_view pattern) const;
  // The key within this scope.
  std::string_view local(std::string_view full_key) const {
    return full_key.substr(prefix_.size());
  }
  const std::string& prefix() const noexcept { return prefix_; }

 private:
  std::string prefix_;
};

struct StoreServerOptions {
  std::string host = "127.0.0.1";    // the only address it listens on
  std::uint16_t port = 29500;        // 0 picks a free one
  std::string journal;               // path; empty: state is lost with the process
  std::optional<std::string> token;  // that clients must prove. Default: TENSORBUS_TOKEN
  bool allow_torch = false;  // admit torch clients, who cannot prove a token, although one is set
  Duration greeting_time = std::chrono::seconds(10);  // who is silent for longer is hung up on
  // Called once, on the server's thread, if it must stop serving (its journal cannot be written).
  std::function<void(const Status&)> on_failure;
};

struct StoreServerStats {
  std::uint64_t connections = 0;  // open now
  std::uint64_t accepted = 0;
  std::uint64_t requests = 0;
  std::uint64_t refused = 0;  // requests that were malformed or too large
  std::uint64_t keys = 0;
  std::uint64_t waits = 0;
  std::uint64_t revision = 0;
  double request_p50_us = 0;  // time inside the server
  double request_p99_us = 0;
};

// Serves on a thread of its own from construction to destruction.
class StoreServer {
 public:
  // Throws Error if it cannot listen or the journal cannot be used.
  explicit StoreServer(const StoreServerOptions& options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  std::uint16_t port() const noexcept;
  std::string url() const;
  StoreServerStats stats() const;
  // Until `count` clients have joined, ours or torch's.
  void wait_for_workers(std::size_t count, Deadline deadline);
  // Stops accepting, sends what is owed, closes. Idempotent; the destructor calls it.
  void stop() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorbus

#pragma GCC visibility pop
