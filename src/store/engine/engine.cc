#include "store/engine/engine.h"

#include <fmt/format.h>

#include <utility>

#include "store/common/limits.h"

namespace tensorbus::store {
namespace {

// Of a queue, in one request of a snapshot.
constexpr std::size_t max_queue_part = 4 * 1024 * 1024;

std::string encode(const WaitResult& result) {
  Encoder encoder;
  encoder.raw(keys_body(result.keys)).string(result.value);
  return std::move(encoder).bytes();
}

// Keys on the wire may be a byte longer than users' keys: a "/" stands before each.
void check_wire_key(std::string_view key) {
  if (key.size() > max_key_size) {
    throw Error(Code::invalid_argument, fmt::format("key is too long: {} bytes, at most {} are "
                                                    "allowed",
                                                    key.size(), max_key_size));
  }
}

void check_wire_value(std::string_view value) {
  if (value.size() > max_value_size) {
    throw Error(Code::invalid_argument, fmt::format("value is too large: {} bytes, at most {} are "
                                                    "allowed",
                                                    value.size(), max_value_size));
  }
}

std::string_view checked_key(Decoder& body) {
  const std::string_view key = body.string();
  check_wire_key(key);
  return key;
}

std::string_view checked_value(Decoder& body) {
  const std::string_view value = body.string();
  check_wire_value(value);
  return value;
}

std::vector<EntryView> checked_entries(Decoder& body) {
  std::vector<EntryView> entries(body.count(8));
  for (EntryView& entry : entries) {
    entry.key = checked_key(body);
    entry.value = checked_value(body);
  }
  return entries;
}

LeaseId checked_lease(Decoder& body) {
  const auto lease = body.integer<LeaseId>();
  if (lease == 0) throw Error(Code::invalid_argument, "a lease needs a number other than 0");
  return lease;
}

Duration checked_time_to_live(Decoder& body) {
  const Duration time_to_live(body.integer<std::int64_t>());
  check_time_to_live(time_to_live);
  return time_to_live;
}

template <typename Range>
auto keys_with_prefix(const Range& records, std::string_view prefix) {
  auto end = records.lower_bound(prefix);
  const auto begin = end;
  while (end != records.end() && end->first.starts_with(prefix)) ++end;
  return std::pair(begin, end);
}

using WriteRequest = std::function<void(Op, std::string_view body)>;

// A queue in several requests if it is large: the size of a request has 32 bits in a journal.
void snapshot_queue(std::string_view key, const std::deque<std::string>& elements,
                    const WriteRequest& write) {
  for (auto next = elements.begin(); next != elements.end();) {
    Encoder part;
    std::uint32_t count = 0;
    while (next != elements.end() && (count == 0 || part.size() + next->size() < max_queue_part)) {
      part.string(*next++);
      ++count;
    }
    write(Op::restore_queue, Encoder().string(key).integer(count).raw(part.bytes()).bytes());
  }
}

// 0, which no lease has, for an absent key, too.
LeaseId lease_of(const Record* record) { return record == nullptr ? 0 : record->lease; }

StoreEvent put_event(const std::string& key, const Record& record) {
  return {StoreEvent::Kind::put, key, record.value, record.revision};
}

}  // namespace

std::string Engine::execute(Op op, std::string_view bytes, TimePoint now) {
  Decoder body(bytes);
  Encoder reply;
  switch (op) {
    case Op::get:
      for (const std::string_view key : read_keys(body)) {
        const Record* record = table_.find(key);
        reply.integer(static_cast<std::uint8_t>(record != nullptr));
        reply.string(record != nullptr ? std::string_view(record->value) : std::string_view());
        if (reply.size() > max_frame_size) {
          throw Error(Code::invalid_argument,
                      "these values are too large for one answer; get "
                      "fewer keys at a time");
        }
      }
      break;
    case Op::exists:
      for (const std::string_view key : read_keys(body)) {
        reply.integer(static_cast<std::uint8_t>(table_.present(key)));
      }
      break;
    case Op::lease_times:
      for (const std::string_view key : read_keys(body)) {
        const auto lease = table_.leases().find(lease_of(table_.find(key)));
        const bool known = lease != table_.leases().end();
        reply.integer(known ? lease->second.time_to_live.count() : std::int64_t{-1});
        reply.integer(known ? (lease->second.expires - now).count() : std::int64_t{-1});
      }
      break;
    case Op::list: {
      const auto [begin, end] = keys_with_prefix(table_.records(), body.string());
      reply.integer(static_cast<std::uint32_t>(std::distance(begin, end)));
      for (auto at = begin; at != end; ++at) reply.string(at->first);
      break;
    }
    default: {
      std::string answer = change(op, body, now);
      publish(op);
      return answer;
    }
  }
  body.end();
  return std::move(reply).bytes();
}

std::string Engine::change(Op op, Decoder& body, TimePoint now) {
  changed_.clear();
  Encoder reply;
  switch (op) {
    case Op::set: {
      const auto lease = body.integer<LeaseId>();
      const auto entries = checked_entries(body);
      body.end();
      table_.set(entries, lease, changed_);
      reply.integer(table_.revision());
      break;
    }
    case Op::add: {
      const std::string_view key = checked_key(body);
      const auto amount = body.integer<std::int64_t>();
      body.end();
      reply.integer(table_.add(key, amount, changed_));
      break;
    }
    case Op::swap: {
      const std::string_view key = checked_key(body);
      const bool has_expected = body.integer<std::uint8_t>() != 0;
      const std::string_view expected = body.string();
      const std::string_view desired = checked_value(body);
      body.end();
      const Swap swap = table_.swap(key, has_expected ? std::optional(expected) : std::nullopt,
                                    desired, changed_);
      reply.integer(static_cast<std::uint8_t>(swap.swapped));
      reply.integer(static_cast<std::uint8_t>(swap.value.has_value()));
      reply.string(swap.value.value_or(""));
      break;
    }
    case Op::erase: {
      const auto keys = read_keys(body);
      body.end();
      reply.integer(static_cast<std::uint32_t>(table_.erase(keys, changed_)));
      break;
    }
    case Op::append: {
      const std::string_view key = checked_key(body);
      const std::string_view value = checked_value(body);
      body.end();
      table_.append(key, value, changed_);
      break;
    }
    case Op::push: {
      const std::string_view key = checked_key(body);
      const std::string_view value = checked_value(body);
      body.end();
      table_.push(key, value, changed_);
      break;
    }
    case Op::pop: {
      const std::string_view key = body.string();
      body.end();
      const auto [length, element] = table_.pop(key, changed_);
      reply.integer(static_cast<std::uint64_t>(length)).string(element.value_or(""));
      break;
    }
    case Op::grant: {
      const LeaseId lease = checked_lease(body);
      const Duration time_to_live = checked_time_to_live(body);
      body.end();
      table_.grant(lease, time_to_live, now);
      break;
    }
    case Op::publish: {
      const LeaseId lease = checked_lease(body);
      const Duration time_to_live = checked_time_to_live(body);
      const auto entries = checked_entries(body);
      body.end();
      // What this server still knows may be newer than what the client published long ago.
      if (table_.refresh(lease, now)) break;
      table_.grant(lease, time_to_live, now);
      if (!entries.empty()) table_.set(entries, lease, changed_);
      break;
    }
    case Op::refresh: {
      const auto lease = body.integer<LeaseId>();
      body.end();
      reply.integer(static_cast<std::uint8_t>(table_.refresh(lease, now)));
      break;
    }
    case Op::revoke:
    case Op::expire: {
      const auto lease = body.integer<LeaseId>();
      body.end();
      table_.revoke(lease, changed_);
      break;
    }
    default:
      restore(op, body);
  }
  return std::move(reply).bytes();
}

void Engine::restore(Op op, Decoder& body) {
  switch (op) {
    case Op::restore_key: {
      const std::string_view key = body.string();
      Record record;
      record.value = body.string();
      record.revision = body.integer<std::uint64_t>();
      record.lease = body.integer<LeaseId>();
      table_.restore(key, std::move(record));
      break;
    }
    case Op::restore_queue: {
      const std::string_view key = body.string();
      std::vector<std::string_view> elements(body.count(4));
      for (std::string_view& element : elements) element = body.string();
      table_.restore_queue(key, elements);
      break;
    }
    case Op::restore_revision:
      table_.restore_revision(body.integer<std::uint64_t>());
      break;
    default:
      throw Error(Code::invalid_argument,
                  fmt::format("unknown operation {}", static_cast<unsigned>(op)));
  }
}

void Engine::publish(Op op) {
  if (changed_.empty()) return;
  for (const Waits::Ready& ready : waits_.after_change(changed_)) {
    listener_.answer(ready.ticket, encode(ready.result));
  }
  // A queue's push or pop changes no value.
  if (watches_.empty() || op == Op::push || op == Op::pop) return;
  for (const std::string& key : changed_) {
    const Record* record = table_.find(key);
    const StoreEvent event = record != nullptr
                                 ? put_event(key, *record)
                                 : StoreEvent{StoreEvent::Kind::erase, key, {}, table_.revision()};
    const std::string encoded = store::encode(event);
    watches_by_prefix_.visit(key, [&](Ticket ticket) { listener_.event(ticket, encoded); });
  }
}

void Engine::begin(Ticket ticket, Op op, std::string_view bytes) {
  Decoder body(bytes);
  switch (op) {
    case Op::wait: {
      const Condition condition = read_condition(body);
      body.end();
      check_wire_key(condition.key);
      if (const auto result = waits_.add(ticket, condition)) {
        listener_.answer(ticket, encode(*result));
      }
      break;
    }
    case Op::wait_all: {
      const auto views = read_keys(body);
      body.end();
      std::vector<std::string> keys(views.begin(), views.end());
      if (const auto result = waits_.add_all(ticket, std::move(keys))) {
        listener_.answer(ticket, encode(*result));
      }
      break;
    }
    case Op::barrier: {
      const std::string_view name = checked_key(body);
      const auto count = body.integer<std::uint64_t>();
      const std::string_view member = checked_key(body);
      body.end();
      check_barrier(name.substr(0, max_key_size - 1), count);
      for (const Ticket released : barriers_.arrive(ticket, name, count, member)) {
        listener_.answer(released, {});
      }
      break;
    }
    case Op::watch: {
      const std::string_view prefix = checked_key(body);
      const auto since = body.integer<std::uint64_t>();
      body.end();
      const auto [begin, end] = keys_with_prefix(table_.records(), prefix);
      Encoder reply;
      reply.integer(table_.revision());
      reply.integer(static_cast<std::uint32_t>(std::distance(begin, end)));
      for (auto at = begin; at != end; ++at) {
        const auto& [key, record] = *at;
        const bool newer = record.revision > since;
        write(reply, {key, record.revision, fingerprint(record.value),
                      newer ? std::string_view(record.value) : std::string_view()});
        if (reply.size() > max_frame_size) {
          throw Error(Code::invalid_argument,
                      "the values under this prefix are too large to watch");
        }
      }
      watches_.emplace(ticket, prefix);
      watches_by_prefix_.add(prefix, ticket);
      listener_.answer(ticket, reply.bytes());
      break;
    }
    default:
      throw Error(Code::invalid_argument,
                  fmt::format("operation {} does not block", static_cast<unsigned>(op)));
  }
}

std::string Engine::end(Ticket ticket) {
  if (const auto missing = waits_.remove(ticket)) return *missing;
  if (const auto missing = barriers_.withdraw(ticket)) return *missing;
  if (const auto watch = watches_.find(ticket); watch != watches_.end()) {
    watches_by_prefix_.remove(watch->second, ticket);
    watches_.erase(watch);
  }
  return {};
}

void Engine::settle(Ticket ticket) {
  for (const Waits::Ready& ready : waits_.after_change(waits_.settle(ticket))) {
    listener_.answer(ready.ticket, encode(ready.result));
  }
}

std::vector<std::string> Engine::expire(TimePoint now) {
  std::vector<std::string> requests;
  for (const LeaseId lease : table_.expired(now)) {
    requests.push_back(std::move(Encoder().integer(lease)).bytes());
    execute(Op::expire, requests.back(), now);
  }
  return requests;
}

void Engine::snapshot(const std::function<void(Op, std::string_view body)>& write) const {
  write(Op::restore_revision, Encoder().integer(table_.revision()).bytes());
  for (const auto& [lease, record] : table_.leases()) {
    write(Op::grant, Encoder().integer(lease).integer(record.time_to_live.count()).bytes());
  }
  for (const auto& [key, record] : table_.records()) {
    write(Op::restore_key, Encoder()
                               .string(key)
                               .string(record.value)
                               .integer(record.revision)
                               .integer(record.lease)
                               .bytes());
  }
  for (const auto& [key, elements] : table_.queues()) snapshot_queue(key, elements, write);
}

}  // namespace tensorbus::store
