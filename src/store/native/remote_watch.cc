// The watches of the native client. After a reconnect the server lists what is there; what changed
// in between is told by comparing it with what was known.
#include <algorithm>
#include <iterator>

#include "store/common/limits.h"
#include "store/native/remote_store.h"

namespace tensorbus::store {

// Says which thread to wake; under the store's mutex.
class RemoteStore::Reading {
 public:
  Reading(WatchState& watch, Waiter& reader) : watch_(watch) { watch_.reader = &reader; }
  ~Reading() { watch_.reader = nullptr; }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  WatchState& watch_;
};

class RemoteStore::WatchHandle final : public Watch {
 public:
  WatchHandle(RemoteStore& store, std::shared_ptr<WatchState> state)
      : store_(store), state_(std::move(state)) {}
  ~WatchHandle() override { close(); }

  StoreEvent next(Deadline deadline, Cancellation* cancellation) override {
    return std::move(take(deadline, cancellation, 1).front());
  }

  std::vector<StoreEvent> next_all(Deadline deadline, Cancellation* cancellation) override {
    return take(deadline, cancellation, SIZE_MAX);
  }

  void close() noexcept override {
    if (store_.forked()) return;
    const Lock lock(store_.mutex_);
    if (state_->closed) return;
    state_->closed = true;
    store_.watches_.erase(state_->id);
    if (store_.connected_ && !store_.closed_) store_.send_cancel(state_->id);
    for (Waiter* waiter : store_.waiters_) waiter->wake.notify_all();
    store_.wake_leader_.signal();
  }

 private:
  // At least one.
  std::vector<StoreEvent> take(Deadline deadline, Cancellation* cancellation, std::size_t most) {
    store_.check_not_forked();
    Waiter self(store_, cancellation);
    Lock lock(store_.mutex_);
    const Reading reading(*state_, self);
    const bool ready = store_.wait_until(lock, self, deadline, [this]() REQUIRES(store_.mutex_) {
      return !state_->events.empty() || state_->closed || !state_->failure.ok();
    });
    if (!ready) {
      throw Error(Code::timeout, "no key under \"" + state_->prefix + "\" changed in time");
    }
    if (state_->closed) throw Error(Code::cancelled, "the watch was closed");
    if (state_->events.empty()) throw Error(state_->failure);
    const auto first = state_->events.begin();
    const auto end = first + static_cast<std::ptrdiff_t>(std::min(most, state_->events.size()));
    std::vector<StoreEvent> events(std::make_move_iterator(first), std::make_move_iterator(end));
    state_->events.erase(first, end);
    return events;
  }

  RemoteStore& store_;
  std::shared_ptr<WatchState> state_;
};

std::unique_ptr<Watch> RemoteStore::watch(const std::string& prefix, bool current,
                                          Deadline deadline) {
  check_key(prefix);
  check_not_forked();
  auto state = std::make_shared<WatchState>();
  state->prefix = prefix;
  state->wants_current = current;
  Waiter self(*this, nullptr);
  Lock lock(mutex_);
  check_usable();
  const Reading reading(*state, self);
  state->id = next_id_++;
  watches_.emplace(state->id, state);
  if (connected_) send_watch(*state);
  bool started = false;
  try {
    started =
        wait_until(lock, self, deadline, [&] { return state->started || !state->failure.ok(); });
  } catch (...) {
    watches_.erase(state->id);
    throw;
  }
  if (!started || !state->failure.ok()) {
    watches_.erase(state->id);
    if (started) throw Error(state->failure);
    throw Error(connected_ ? Code::timeout : Code::unreachable,
                "the store at " + url() + " did not take the watch in time");
  }
  return std::make_unique<WatchHandle>(*this, std::move(state));
}

void RemoteStore::synchronise(WatchState& watch, Decoder reply) {
  const auto revision = reply.integer<std::uint64_t>();
  std::map<std::string, std::uint64_t, std::less<>> present;
  const bool report = watch.started || watch.wants_current;
  for (const WatchedKey& key : read_watched_keys(reply)) {
    const auto known = watch.known.find(key.key);
    // Another server's revisions say nothing about ours, its values do.
    const bool changed = watch.revision != 0
                             ? key.revision > watch.revision
                             : known == watch.known.end() || known->second != key.fingerprint;
    present.emplace(key.key, key.fingerprint);
    if (report && changed) {
      watch.events.push_back(
          {StoreEvent::Kind::put, user_key(key.key), std::string(key.value), key.revision});
    }
  }
  for (const auto& [key, _] : watch.known) {
    if (!present.contains(key)) {
      watch.events.push_back({StoreEvent::Kind::erase, user_key(key), {}, revision});
    }
  }
  watch.known = std::move(present);
  watch.revision = revision;
  watch.started = true;
}

void RemoteStore::take_event(WatchState& watch, std::string_view body) {
  Decoder decoder(body);
  StoreEvent event = decode_event(decoder);
  watch.revision = std::max(watch.revision, event.revision);
  if (event.kind == StoreEvent::Kind::put) {
    watch.known.insert_or_assign(event.key, fingerprint(event.value));
  } else {
    watch.known.erase(event.key);
  }
  event.key = user_key(event.key);
  watch.events.push_back(std::move(event));
}

}  // namespace tensorbus::store
