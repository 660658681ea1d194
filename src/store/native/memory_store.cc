#include "store/native/memory_store.h"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <map>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/waiting.h"
#include "store/common/limits.h"
#include "store/engine/engine.h"
#include "store/native/request_store.h"

namespace tensorbus::store {
namespace {
// One named store: the engine, and the threads that are blocked on it.
class Hub final : private Listener {
 public:
  struct Blocked {
    std::condition_variable wake;
    bool answered = false;
    bool closed = false;
    std::string reply;
    std::deque<std::string> events;
  };

  Mutex mutex;

  std::string execute(Op op, std::string_view body) REQUIRES(mutex) {
    expire();
    std::string reply = engine_.execute(op, body, now());
    // A lease that ends sooner than those before it shortens everybody's sleep.
    if (op == Op::grant) wake_all();
    return reply;
  }

  Ticket begin(Op op, std::string_view body, Blocked& blocked) REQUIRES(mutex) {
    expire();
    const Ticket ticket = next_ticket_++;
    blocked_.emplace(ticket, &blocked);
    try {
      engine_.begin(ticket, op, body);
    } catch (...) {
      blocked_.erase(ticket);
      throw;
    }
    return ticket;
  }

  std::string end(Ticket ticket) REQUIRES(mutex) {
    blocked_.erase(ticket);
    return engine_.end(ticket);
  }

  // Sleeps until `finished`, which is asked under the lock. False at the deadline.
  bool wait_until(Lock& lock, Blocked& blocked, Deadline deadline, Cancellation* cancellation,
                  const std::function<bool()>& finished) REQUIRES(mutex) {
    Waiting waiting(lock, deadline);
    while (true) {
      expire();
      if (finished()) return true;
      if (blocked.closed) throw Error(Code::cancelled, "the store was closed");
      if (cancellation != nullptr && cancellation->cancelled()) {
        throw Error(Code::cancelled, "the call was cancelled");
      }
      const auto expiry = engine_.table().next_expiry();
      if (!waiting.sleep(blocked.wake, expiry ? Deadline(*expiry) : Deadline::never()))
        return false;
    }
  }

 private:
  void expire() REQUIRES(mutex) { engine_.expire(now()); }
  void wake_all() REQUIRES(mutex) {
    for (const auto& [_, blocked] : blocked_) blocked->wake.notify_all();
  }

  void answer(Ticket ticket, std::string_view body) override REQUIRES(mutex) {
    Blocked& blocked = *blocked_.at(ticket);
    blocked.answered = true;
    blocked.reply = body;
    blocked.wake.notify_all();
  }
  void event(Ticket ticket, std::string_view event) override REQUIRES(mutex) {
    Blocked& blocked = *blocked_.at(ticket);
    blocked.events.emplace_back(event);
    blocked.wake.notify_all();
  }

  Engine engine_ GUARDED_BY(mutex){*this};
  std::map<Ticket, Blocked*> blocked_ GUARDED_BY(mutex);
  Ticket next_ticket_ GUARDED_BY(mutex) = 1;
};

// Wakes a blocked thread when it is cancelled. Lives outside the hub's lock.
Cancellation::Hook wake_on_cancel(Hub& hub, Hub::Blocked& blocked, Cancellation* cancellation) {
  return {cancellation, [&] {
            const Lock lock(hub.mutex);
            blocked.wake.notify_all();
          }};
}

class MemoryStore final : public RequestStore {
 public:
  MemoryStore(std::string name, std::shared_ptr<Hub> hub)
      : name_(std::move(name)), hub_(std::move(hub)) {}
  ~MemoryStore() override { close(false); }

  std::string url() const override { return "memory://" + name_; }

  std::unique_ptr<Watch> watch(const std::string& prefix, bool current, Deadline) override;

  void close(bool cleanup) noexcept override {
    end_leases(cleanup);
    if (!forked()) {
      const Lock lock(hub_->mutex);
      closed_ = true;
      for (Hub::Blocked* blocked : mine_) {
        blocked->closed = true;
        blocked->wake.notify_all();
      }
    }
    join_keep_alive();
  }

 private:
  class WatchHandle;

  void check_usable() const REQUIRES(hub_->mutex) {
    if (closed_) throw Error(Code::cancelled, "the store was closed");
  }

  std::string call(Op op, const std::string& body, Deadline deadline,
                   Cancellation* cancellation) override {
    check_not_forked();
    if (!is_blocking(op)) {
      const Lock lock(hub_->mutex);
      check_usable();
      return hub_->execute(op, body);
    }
    Hub::Blocked blocked;
    const auto hook = wake_on_cancel(*hub_, blocked, cancellation);
    Lock lock(hub_->mutex);
    check_usable();
    const Ticket ticket = hub_->begin(op, body, blocked);
    mine_.push_back(&blocked);
    bool answered = false;
    std::string missing;
    const auto leave = [&]() REQUIRES(hub_->mutex) {
      std::erase(mine_, &blocked);
      missing = hub_->end(ticket);
    };
    try {
      answered =
          hub_->wait_until(lock, blocked, deadline, cancellation, [&] { return blocked.answered; });
    } catch (...) {
      leave();
      throw;
    }
    leave();
    if (!answered) throw Error(Code::timeout, "timed out; " + missing);
    return std::move(blocked.reply);
  }

  const std::string name_;
  const std::shared_ptr<Hub> hub_;
  bool closed_ GUARDED_BY(hub_->mutex) = false;
  std::vector<Hub::Blocked*> mine_ GUARDED_BY(hub_->mutex);
};

class MemoryStore::WatchHandle final : public Watch {
 public:
  WatchHandle(MemoryStore& store, const std::string& prefix, bool current)
      : store_(store), prefix_(prefix) {
    const Lock lock(store_.hub_->mutex);
    store_.check_usable();
    const std::uint64_t since = current ? 0 : UINT64_MAX;
    ticket_ = store_.hub_->begin(
        Op::watch, std::move(Encoder().string(wire_key(prefix)).integer(since)).bytes(), blocked_);
    store_.mine_.push_back(&blocked_);
    if (current) queue_present();
  }
  ~WatchHandle() override { close(); }

  StoreEvent next(Deadline deadline, Cancellation* cancellation) override {
    return std::move(take(deadline, cancellation, 1).front());
  }

  std::vector<StoreEvent> next_all(Deadline deadline, Cancellation* cancellation) override {
    return take(deadline, cancellation, SIZE_MAX);
  }

  void close() noexcept override {
    if (store_.forked()) return;
    const Lock lock(store_.hub_->mutex);
    if (!open_) return;
    open_ = false;
    store_.hub_->end(ticket_);
    std::erase(store_.mine_, &blocked_);
    blocked_.closed = true;
    blocked_.events.clear();
    blocked_.wake.notify_all();
  }

 private:
  // At least one.
  std::vector<StoreEvent> take(Deadline deadline, Cancellation* cancellation, std::size_t most) {
    store_.check_not_forked();
    const auto hook = wake_on_cancel(*store_.hub_, blocked_, cancellation);
    Lock lock(store_.hub_->mutex);
    if (!store_.hub_->wait_until(lock, blocked_, deadline, cancellation,
                                 [this] { return !blocked_.events.empty(); })) {
      throw Error(Code::timeout, "no key under \"" + prefix_ + "\" changed in time");
    }
    std::vector<StoreEvent> events;
    while (!blocked_.events.empty() && events.size() < most) {
      Decoder decoder(blocked_.events.front());
      events.push_back(decode_event(decoder));
      events.back().key = user_key(events.back().key);
      blocked_.events.pop_front();
    }
    return events;
  }

  void queue_present() REQUIRES(store_.hub_->mutex) {
    Decoder reply(blocked_.reply);
    reply.integer<std::uint64_t>();
    for (const WatchedKey& present : read_watched_keys(reply)) {
      blocked_.events.push_back(encode(StoreEvent{StoreEvent::Kind::put, std::string(present.key),
                                                  std::string(present.value), present.revision}));
    }
  }

  MemoryStore& store_;
  const std::string prefix_;
  Hub::Blocked blocked_;
  Ticket ticket_ = 0;
  bool open_ GUARDED_BY(store_.hub_->mutex) = true;
};

std::unique_ptr<Watch> MemoryStore::watch(const std::string& prefix, bool current, Deadline) {
  check_key(prefix);
  check_not_forked();
  return std::make_unique<WatchHandle>(*this, prefix, current);
}

ProcessMutex hubs_mutex;

}  // namespace

std::unique_ptr<Store> connect_memory(const std::string& name) {
  static std::map<std::string, std::weak_ptr<Hub>> hubs GUARDED_BY(hubs_mutex);
  const Lock lock(hubs_mutex);
  std::erase_if(hubs, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Hub> hub = hubs[name].lock();
  if (hub == nullptr) {
    hub = std::make_shared<Hub>();
    hubs[name] = hub;
  }
  return std::make_unique<MemoryStore>(name, std::move(hub));
}

}  // namespace tensorbus::store
