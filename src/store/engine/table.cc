#include "store/engine/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace tensorbus::store {
namespace {

std::int64_t number_in(std::string_view key, std::string_view text) {
  std::int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size()) {
    throw Error(Code::invalid_argument,
                fmt::format("key \"{}\" holds \"{}\", which is not a whole number, so nothing can "
                            "be added to it",
                            key, text.substr(0, 40)));
  }
  return number;
}

}  // namespace

const Record* Table::find(std::string_view key) const {
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : &found->second;
}

bool Table::present(std::string_view key) const {
  return records_.contains(key) || queues_.contains(key);
}

void Table::detach(const std::string& key, Record& record) {
  if (record.lease == 0) return;
  if (const auto lease = leases_.find(record.lease); lease != leases_.end()) {
    lease->second.keys.erase(key);
  }
  record.lease = 0;
}

void Table::put(std::string_view key, std::string value, LeaseId lease, Changed& changed) {
  auto found = records_.find(key);
  if (found == records_.end()) found = records_.emplace(key, Record{}).first;
  Record& record = found->second;
  if (record.lease != lease) {
    detach(found->first, record);
    record.lease = lease;
    if (lease != 0) leases_.at(lease).keys.insert(found->first);
  }
  record.value = std::move(value);
  record.revision = revision_;
  changed.emplace_back(key);
}

void Table::set(std::span<const EntryView> entries, LeaseId lease, Changed& changed) {
  if (lease != 0 && !leases_.contains(lease)) {
    throw Error(Code::failed, "the lease has lapsed: its holder was away for too long");
  }
  ++revision_;
  for (const EntryView& entry : entries) put(entry.key, std::string(entry.value), lease, changed);
}

std::int64_t Table::add(std::string_view key, std::int64_t amount, Changed& changed) {
  const Record* record = find(key);
  const std::int64_t before = record == nullptr ? 0 : number_in(key, record->value);
  std::int64_t sum = 0;
  if (__builtin_add_overflow(before, amount, &sum)) {
    throw Error(Code::invalid_argument,
                fmt::format("adding {} to key \"{}\" ({}) leaves the range of 64 bits", amount, key,
                            before));
  }
  ++revision_;
  put(key, std::to_string(sum), record == nullptr ? 0 : record->lease, changed);
  return sum;
}

Swap Table::swap(std::string_view key, std::optional<std::string_view> expected,
                 std::string_view desired, Changed& changed) {
  const Record* record = find(key);
  const bool holds = expected ? record != nullptr && record->value == *expected : record == nullptr;
  if (!holds) {
    return {false, record == nullptr ? std::nullopt : std::optional(record->value)};
  }
  ++revision_;
  put(key, std::string(desired), 0, changed);
  return {true, std::string(desired)};
}

std::size_t Table::erase(std::span<const std::string_view> keys, Changed& changed) {
  std::size_t erased = 0;
  for (const std::string_view key : keys) {
    bool existed = false;
    if (const auto found = records_.find(key); found != records_.end()) {
      detach(found->first, found->second);
      records_.erase(found);
      existed = true;
    }
    if (const auto queue = queues_.find(key); queue != queues_.end()) {
      queues_.erase(queue);
      existed = true;
    }
    if (existed) changed.emplace_back(key);
    erased += existed;
  }
  if (erased > 0) ++revision_;
  return erased;
}

void Table::append(std::string_view key, std::string_view value, Changed& changed) {
  const Record* record = find(key);
  std::string whole = record == nullptr ? std::string() : record->value;
  if (whole.size() + value.size() > max_value_size) {
    throw Error(Code::invalid_argument,
                fmt::format("key \"{}\" would grow beyond {} bytes", key, max_value_size));
  }
  whole += value;
  ++revision_;
  put(key, std::move(whole), record == nullptr ? 0 : record->lease, changed);
}

void Table::push(std::string_view key, std::string_view value, Changed& changed) {
  ++revision_;
  auto queue = queues_.find(key);
  if (queue == queues_.end()) queue = queues_.emplace(key, std::deque<std::string>()).first;
  queue->second.emplace_back(value);
  changed.emplace_back(key);
}

std::pair<std::size_t, std::optional<std::string>> Table::pop(std::string_view key,
                                                              Changed& changed) {
  const auto queue = queues_.find(key);
  if (queue == queues_.end()) return {0, std::nullopt};
  ++revision_;
  const std::size_t length = queue->second.size();
  std::string oldest = std::move(queue->second.front());
  queue->second.pop_front();
  // A queue is never kept empty, so that a key without elements is absent.
  if (queue->second.empty()) queues_.erase(queue);
  changed.emplace_back(key);
  return {length, std::move(oldest)};
}

void Table::grant(LeaseId lease, Duration time_to_live, TimePoint now) {
  LeaseRecord& record = leases_[lease];
  expiries_.erase({record.expires, lease});
  record.time_to_live = time_to_live;
  record.expires = now + time_to_live;
  expiries_.insert({record.expires, lease});
}

bool Table::refresh(LeaseId lease, TimePoint now) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return false;
  grant(lease, found->second.time_to_live, now);
  return true;
}

void Table::revoke(LeaseId lease, Changed& changed) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return;
  expiries_.erase({found->second.expires, lease});
  const auto keys = std::move(found->second.keys);
  leases_.erase(found);
  ++revision_;
  for (const std::string& key : keys) {
    records_.erase(key);
    changed.push_back(key);
  }
}

std::optional<TimePoint> Table::next_expiry() const {
  if (expiries_.empty()) return std::nullopt;
  return expiries_.begin()->first;
}

std::vector<LeaseId> Table::expired(TimePoint now) const {
  std::vector<LeaseId> leases;
  for (const auto& [expires, lease] : expiries_) {
    if (expires > now) break;
    leases.push_back(lease);
  }
  return leases;
}

void Table::restore(std::string_view key, Record record) {
  if (record.lease != 0) {
    const auto lease = leases_.find(record.lease);
    if (lease == leases_.end()) throw Error(Code::failed, "a key of a lease that does not exist");
    lease->second.keys.emplace(key);
  }
  restore_revision(record.revision);
  records_.insert_or_assign(std::string(key), std::move(record));
}

void Table::restore_queue(std::string_view key, std::span<const std::string_view> elements) {
  if (elements.empty()) return;
  auto& queue = queues_[std::string(key)];
  queue.insert(queue.end(), elements.begin(), elements.end());
}

}  // namespace tensorbus::store
