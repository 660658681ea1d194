// What the server does with the bytes of its clients: both protocols, sessions, journal. Runs on
// the server's one thread; sockets and timers are the loop's business (server.cc).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/counter.h"
#include "observe/histogram.h"
#include "store/engine/engine.h"
#include "store/protocol/torch_protocol.h"
#include "store/server/connection.h"
#include "store/server/journal.h"
#include "store/server/lease_clock.h"
#include "store/server/sessions.h"

namespace tensorbus::store {

struct ServiceCounters {
  observe::Counter requests;
  observe::Counter refused;
  observe::Counter keys;
  observe::Counter waits;
  observe::Counter revision;
  observe::Histogram request_time;
};

class Service final : private Listener {
 public:
  explicit Service(const StoreServerOptions& options);

  // Handles all whole requests in the connection's input. Sets `closing` for a connection that
  // broke a rule.
  void serve(Connection& connection);
  // The server was told to stop: tells the client so, and in whose process.
  void say_farewell(Connection& connection) const;
  // The connection's waits, barrier places and watches are over.
  void forget(Connection& connection);

  // Removes leases that had lapsed by then, and sessions of clients that are long gone.
  void tick(TimePoint now, TimePoint lapsed_by);
  // How long until the next lease lapses.
  std::optional<Duration> next_lapse() const;
  // The time of leases, which stands still while the loop does. Called in every turn: how long did
  // the loop mean to sleep since the last call?
  TimePoint lease_time() const;
  void look_at_clock(Duration planned);
  // Lets another server have the journal.
  void release_journal() noexcept { journal_.reset(); }
  // Writes the journal, and counts. What was answered before this may be sent after it.
  void commit();

  // Whether one of the next three has something.
  bool has_work() const noexcept {
    return !resumed_.empty() || !dirty_.empty() || !replaced_.empty();
  }
  // A torch client whose wait ended: the requests behind the wait can be served now.
  Connection* take_resumed();
  // A client that has read enough of its replies: its next requests can be served now.
  void resume(Connection& connection);
  bool has_resumed() const noexcept { return !resumed_.empty(); }
  // Connections with output, or that are closing, since the last call.
  std::vector<Connection*> take_dirty();
  // A connection whose client has come back on another connection.
  Connection* take_replaced();

  std::int64_t workers() const;
  ServiceCounters& counters() noexcept { return counters_; }

 private:
  struct Waiter {
    Connection* connection;
    std::uint64_t id;
    Op op;
    bool torch;
    std::uint64_t settled;  // of a barrier
  };

  bool serve_one(Connection& connection);
  bool greet(Connection& connection);
  void greet_native(Connection& connection);
  bool check_proof(Connection& connection);
  void admit(Connection& connection);
  bool serve_native(Connection& connection);
  void handle_native(Connection& connection, std::uint64_t id, Op op, std::string_view body);
  void cancel_native(Connection& connection, std::string_view body);
  bool serve_torch(Connection& connection);
  void handle_torch(Connection& connection, const TorchRequest& request);
  void reply_values_torch(Connection& connection, std::span<const std::string_view> keys) const;
  void compare_set_torch(Connection& connection, const TorchRequest& request);
  void block_torch(Connection& connection, Op op, const std::string& body);
  std::string change(Op op, std::string_view body, std::string_view session = {},
                     std::uint64_t id = 0, std::uint64_t settled = 0);
  void begin(Connection& connection, std::uint64_t id, Op op, std::string_view body, bool torch,
             std::uint64_t settled = 0);
  void check_settled(std::string_view session) const;
  void refuse(Connection& connection, const std::string& reason);
  void mark_dirty(Connection& connection);
  void open_journal(const std::string& path);
  void replay(const JournalRecord& record);
  // The records that stand for all there is.
  void snapshot(const std::function<void(const JournalRecord&)>& write) const;
  void compact();

  void answer(Ticket ticket, std::string_view body) override;
  void event(Ticket ticket, std::string_view event) override;

  const std::optional<std::string> token_;
  const bool allow_torch_;
  const Id16 instance_ = random_id();
  LeaseClock lease_clock_;
  Engine engine_{*this};
  Sessions sessions_;
  std::optional<Journal> journal_;
  std::unordered_map<Ticket, Waiter> waiters_;
  Ticket next_ticket_ = 1;
  std::unordered_map<std::string, Connection*> by_session_;
  std::vector<Connection*> resumed_;
  std::vector<Connection*> dirty_;
  std::vector<Connection*> replaced_;
  TimePoint next_sweep_{};
  ServiceCounters counters_;
};

}  // namespace tensorbus::store
