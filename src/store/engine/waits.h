// Waits for conditions, kept up to date with each change, so that a change costs what it touches
// and not what is waited for: the waits for its keys, and the patterns that begin as its keys do.
// Equal pattern conditions share one set of matches. The set is kept a while when nobody waits any
// more: the next member of a crowd does not search again. Pure, like the table.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/common/pattern.h"
#include "store/common/prefix_index.h"
#include "store/engine/table.h"

namespace tensorbus::store {

// Names one blocked request of one client; the owner of the clients gives tickets out.
using Ticket = std::uint64_t;

class Waits {
 public:
  explicit Waits(const Table& table) : table_(table) {}

  struct Ready {
    Ticket ticket;
    WaitResult result;
  };

  // The result if the condition holds now; else the wait is registered under the ticket.
  std::optional<WaitResult> add(Ticket ticket, const Condition& condition);
  // The same for "all of these keys are present", queues counting as present.
  std::optional<WaitResult> add_all(Ticket ticket, std::vector<std::string> keys);
  // The waits whose condition holds now that these keys changed; these waits are registered no
  // more.
  std::vector<Ready> after_change(const Table::Changed& changed);
  // Ends a wait; says what was missing. Nothing if there is no such wait.
  std::optional<std::string> remove(Ticket ticket);

  // An element of a queue that ended a wait is promised to the client that waited, so that the
  // element ends nobody else's wait. The promise is over when the client has taken the element, has
  // asked for something else or is gone. Returns the keys whose elements are free again.
  Table::Changed settle(Ticket ticket);

  std::size_t size() const noexcept { return by_ticket_.size(); }

 private:
  // Waits for certain keys.
  struct KeyWait {
    Ticket ticket;
    std::vector<std::string> keys;  // sorted, no two equal
    std::vector<bool> satisfied;
    std::size_t missing = 0;
    std::optional<std::string> value;
    bool queues_count = false;
  };
  // All waits for one pattern and value.
  struct Group {
    Pattern pattern;
    std::optional<std::string> value;
    std::set<std::string, std::less<>> matching;
    std::multimap<std::size_t, Ticket> waiters;  // by the count they wait for
  };
  using GroupKey = std::pair<std::string, std::optional<std::string>>;
  // A wait, and which of its keys.
  using KeyInWait = std::pair<KeyWait*, std::size_t>;

  bool satisfies(const KeyWait& wait, const std::string& key) const;
  std::optional<WaitResult> add_keys(std::unique_ptr<KeyWait> wait);
  WaitResult result_of(const KeyWait& wait) const;
  static WaitResult result_of(const Group& group, std::size_t count);
  void forget(const KeyWait& wait);
  void promise(const KeyWait& wait);
  void recheck(KeyWait& wait) const;
  Group& group_for(const Condition& condition);
  // Nobody waits for the group any more.
  void retire(Group& group);
  std::string missing_in(const Group& group, std::size_t count) const;

  const Table& table_;
  std::map<GroupKey, std::unique_ptr<Group>> groups_;
  PrefixIndex<Group*> by_prefix_;
  std::vector<Group*> idle_;  // those without waiters, oldest first
  std::unordered_map<std::string, std::vector<KeyInWait>> by_key_;
  struct Owner {
    std::unique_ptr<KeyWait> keys;
    Group* group = nullptr;
    std::size_t count = 0;
  };
  std::unordered_map<Ticket, Owner> by_ticket_;
  std::unordered_map<std::string, std::size_t> promised_;  // elements by key
  std::unordered_map<Ticket, Table::Changed> promises_;
};

}  // namespace tensorbus::store
