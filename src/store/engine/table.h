// The store's data: keys, queues and leases. Pure: no threads, no clock, no I/O. Every change has a
// revision, and all keys of one request change at the same one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/common/entry_view.h"
#include "tensorbus/store.h"

namespace tensorbus::store {

using LeaseId = std::uint64_t;  // 0: none

struct Record {
  std::string value;
  std::uint64_t revision = 0;
  LeaseId lease = 0;
};

class Table {
 public:
  using Records = std::map<std::string, Record, std::less<>>;
  using Queues = std::map<std::string, std::deque<std::string>, std::less<>>;
  struct LeaseRecord {
    Duration time_to_live{};
    TimePoint expires{};
    std::set<std::string, std::less<>> keys;
  };

  const Records& records() const noexcept { return records_; }
  const Queues& queues() const noexcept { return queues_; }
  const std::map<LeaseId, LeaseRecord>& leases() const noexcept { return leases_; }
  std::uint64_t revision() const noexcept { return revision_; }

  const Record* find(std::string_view key) const;
  // A value, or a queue that is not empty.
  bool present(std::string_view key) const;

  // Each returns normally only if it took effect, and appends the keys it changed to `changed`.
  using Changed = std::vector<std::string>;
  void set(std::span<const EntryView> entries, LeaseId lease, Changed& changed);
  std::int64_t add(std::string_view key, std::int64_t amount, Changed& changed);
  Swap swap(std::string_view key, std::optional<std::string_view> expected,
            std::string_view desired, Changed& changed);
  std::size_t erase(std::span<const std::string_view> keys, Changed& changed);
  void append(std::string_view key, std::string_view value, Changed& changed);
  void push(std::string_view key, std::string_view value, Changed& changed);
  // The length before, and the oldest element if there was one.
  std::pair<std::size_t, std::optional<std::string>> pop(std::string_view key, Changed& changed);

  void grant(LeaseId lease, Duration time_to_live, TimePoint now);
  // False if the lease is gone.
  bool refresh(LeaseId lease, TimePoint now);
  void revoke(LeaseId lease, Changed& changed);
  std::optional<TimePoint> next_expiry() const;
  std::vector<LeaseId> expired(TimePoint now) const;

  // For a journal: sets a key as it was, revision included.
  void restore(std::string_view key, Record record);
  // Puts the elements behind those that are there.
  void restore_queue(std::string_view key, std::span<const std::string_view> elements);
  void restore_revision(std::uint64_t revision) { revision_ = std::max(revision_, revision); }

 private:
  void put(std::string_view key, std::string value, LeaseId lease, Changed& changed);
  void detach(const std::string& key, Record& record);

  Records records_;
  Queues queues_;
  std::map<LeaseId, LeaseRecord> leases_;
  std::set<std::pair<TimePoint, LeaseId>> expiries_;
  std::uint64_t revision_ = 0;
};

}  // namespace tensorbus::store
