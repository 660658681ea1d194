// The store without its wires: executes requests on the table, wakes waits, barriers and watches.
// Used by the server and by memory://. Single-threaded; told the time; no I/O.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "store/common/prefix_index.h"
#include "store/engine/barriers.h"
#include "store/engine/table.h"
#include "store/engine/waits.h"
#include "store/protocol/protocol.h"

namespace tensorbus::store {

// Hears what happens to blocked requests. Called inside execute() and begin().
class Listener {
 public:
  virtual ~Listener() = default;
  // The last word on a wait or barrier: the reply's body.
  virtual void answer(Ticket ticket, std::string_view body) = 0;
  // One event of a watch, encoded.
  virtual void event(Ticket ticket, std::string_view event) = 0;
};

class Engine {
 public:
  explicit Engine(Listener& listener) : listener_(listener) {}

  // Reads and changes: the reply's body. Throws Error for bad requests, and then nothing changed.
  std::string execute(Op op, std::string_view body, TimePoint now);

  // Blocking requests: answered through the listener, perhaps before this returns. A watch answers
  // with the keys that are there, with the values of those changed since the revision that the
  // watcher knows, and then stays.
  void begin(Ticket ticket, Op op, std::string_view body);
  // Ends a blocked request; says what the request waited for.
  std::string end(Ticket ticket);

  // The client of this ended wait has taken what the wait was for, or never will.
  void settle(Ticket ticket);

  // Removes what has lapsed; the requests to write into a journal.
  std::vector<std::string> expire(TimePoint now);

  const Table& table() const noexcept { return table_; }
  std::size_t blocked() const noexcept { return waits_.size() + barriers_.size(); }

  // The requests that rebuild the state, for a journal's snapshot.
  void snapshot(const std::function<void(Op, std::string_view body)>& write) const;

 private:
  // Tells those who wait or watch what the operation has changed.
  void publish(Op op);
  std::string change(Op op, Decoder& body, TimePoint now);
  void restore(Op op, Decoder& body);

  Listener& listener_;
  Table table_;
  Waits waits_{table_};
  Barriers barriers_;
  std::map<Ticket, std::string> watches_;  // prefix by ticket
  PrefixIndex<Ticket> watches_by_prefix_;
  Table::Changed changed_;
};

}  // namespace tensorbus::store
