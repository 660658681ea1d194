#include "bus/directory/store_directory.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <iterator>
#include <set>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/secret.h"
#include "bus/directory/records.h"
#include "os/io/poll.h"

namespace tensorbus::bus {
namespace {

struct Publish {
  std::string key;
  std::string value;
};
struct Withdraw {
  std::string key;
};
struct CompareAndSet {
  std::string key;
  std::optional<std::string> expected;
  std::string desired;
  std::uint64_t request = 0;
};
using Request = std::variant<Publish, Withdraw, CompareAndSet>;

const Status ended_here{Code::cancelled, "this process has stopped its store"};

class StoreDirectory final : public Directory {
 public:
  StoreDirectory(std::shared_ptr<Store> store, StoreDirectoryOptions options)
      : store_(std::move(store)),
        options_(options),
        scope_(options.space, component_of_records),
        shown_(options.space, component_of_status) {
    const Capabilities can = store_->capabilities();
    if (!can.leases || !can.watches) {
      throw Error(Code::unsupported, "the bus needs leases and watches, which " + store_->url() +
                                         " does not have; use a tensorbus:// or etcd:// store");
    }
    requester_ = std::thread([this] { make_requests(); });
    watcher_ = std::thread([this] { watch(); });
  }

  ~StoreDirectory() override {
    {
      const Lock lock(mutex_);
      stopping_ = true;
      ends_by_ = Deadline::after(options_.one_try);
    }
    wake_.notify_all();
    cancellation_.cancel();
    watcher_.join();
    requester_.join();
  }

  void publish(std::string key, std::string value) override {
    push(Publish{scope_.full(key), std::move(value)});
  }
  void withdraw(std::string key) override { push(Withdraw{scope_.full(key)}); }
  void show(std::string key, std::string value) override {
    std::string full = shown_.full(key);
    {
      const Lock lock(mutex_);
      // While the store is away, what is shown does not pile up.
      for (Request& each : requests_) {
        auto* waiting = std::get_if<Publish>(&each);
        if (waiting == nullptr || waiting->key != full) continue;
        waiting->value = std::move(value);
        return;
      }
    }
    push(Publish{std::move(full), std::move(value)});
  }
  void compare_and_set(std::string key, std::optional<std::string> expected, std::string desired,
                       std::uint64_t request) override {
    push(CompareAndSet{scope_.full(key), std::move(expected), std::move(desired), request});
  }

  std::span<const DirectoryEvent> poll() override {
    returned_.clear();
    const Lock lock(mutex_);
    if (events_.empty()) return {};
    ready_.drain();
    returned_.swap(events_);
    loss_untold_ = false;
    return returned_;
  }
  bool arm() override {
    const Lock lock(mutex_);
    return events_.empty();
  }
  int fd() const noexcept override { return ready_.get(); }

 private:
  void push(Request request) {
    {
      const Lock lock(mutex_);
      // The agent that publishes does not know yet that its lease is lost.
      if (loss_untold_ && std::holds_alternative<Publish>(request)) return;
      requests_.push_back(std::move(request));
    }
    wake_.notify_all();
  }

  void post(DirectoryEvent event) {
    const Lock lock(mutex_);
    post_locked(std::move(event));
  }
  void post_locked(DirectoryEvent event) REQUIRES(mutex_) {
    if (events_.empty()) ready_.signal();
    events_.push_back(std::move(event));
  }
  // Whoever polls wakes up once for all of them.
  void post_all(std::vector<DirectoryEvent> events) {
    const Lock lock(mutex_);
    if (events.empty()) return;
    if (events_.empty()) ready_.signal();
    std::ranges::move(events, std::back_inserter(events_));
  }

  bool stopping() {
    const Lock lock(mutex_);
    return stopping_;
  }

  void pause(Duration time) {
    Lock lock(mutex_);
    wake_.wait_for(lock, time, [this]() REQUIRES(mutex_) { return stopping_; });
  }

  Deadline one_try() {
    const Lock lock(mutex_);
    return sooner(Deadline::after(options_.one_try), ends_by_);
  }

  void make_requests() {
    while (const std::optional<Request> request = next_request()) {
      if (!carry_out(*request)) break;
    }
    try {
      if (lease_ != nullptr) lease_->revoke(Deadline::after(options_.one_try));
    } catch (const std::exception&) {
      // The lease lapses by itself.
    }
  }

  // Nothing when the directory stops.
  std::optional<Request> next_request() {
    while (true) {
      look_at_lease();
      Lock lock(mutex_);
      wake_.wait_for(lock, options_.look_at_lease_every,
                     [this]() REQUIRES(mutex_) { return stopping_ || !requests_.empty(); });
      // An agent that leaves does not wait for a store that is away.
      if (stopping_ && (requests_.empty() || unreachable_ || ends_by_.expired())) {
        return std::nullopt;
      }
      if (requests_.empty()) continue;
      Request request = std::move(requests_.front());
      requests_.pop_front();
      return request;
    }
  }

  // Again and again, until the request is done, refused or overtaken by the loss of the lease.
  // False if the directory stops before that.
  bool carry_out(const Request& request) {
    for (bool repeated = false;; repeated = true) {
      const bool lost = look_at_lease();
      if (lost && std::holds_alternative<Publish>(request)) return true;
      try {
        std::visit([&](const auto& each) { make(each, repeated); }, request);
        tell_reachable({});
        return true;
      } catch (...) {
        const Status why = current_exception_status();
        if (why.code == Code::invalid_argument) {
          std::visit([&](const auto& each) { refuse(each, why); }, request);
          return true;
        }
        if (stopping()) return false;
        // The agent is told when the trouble lasts: an agent that ends together with its store has
        // nobody to tell.
        if (repeated) tell_reachable(store_->server_ended_here() ? ended_here : why);
      }
      pause(options_.between_tries);
      if (stopping()) return false;
    }
  }

  void tell_reachable(const Status& status) {
    if (std::exchange(unreachable_, !status.ok()) == status.ok()) post(Reachable{status});
  }

  // Before every try: a call under a lease that has lapsed fails for ever. True if the lease was
  // lost.
  bool look_at_lease() {
    if (lease_ == nullptr || lease_->alive()) return false;
    lease_.reset();
    const Lock lock(mutex_);
    // The records speak of an incarnation that other agents take for dead.
    std::erase_if(requests_,
                  [](const Request& each) { return std::holds_alternative<Publish>(each); });
    loss_untold_ = true;
    post_locked(LeaseLost{{Code::peer_lost, "its lease at the store has lapsed"}});
    return true;
  }

  void make(const Publish& each, bool repeated) {
    const Deadline deadline = one_try();
    // Every write goes to all agents. A store that answers late because many register at once would
    // be kept from answering by what is written again.
    if (repeated && lease_ != nullptr && is_there(each, deadline)) return;
    if (lease_ == nullptr) lease_ = store_->lease(options_.time_to_live, {}, deadline);
    const Entry entry{each.key, each.value};
    store_->set(std::span(&entry, 1), deadline, lease_.get());
  }
  bool is_there(const Publish& each, Deadline deadline) {
    return store_->get(std::span(&each.key, 1), deadline).front() == each.value;
  }
  void make(const Withdraw& each, bool) { store_->erase(each.key, one_try()); }
  void make(const CompareAndSet& each, bool repeated) {
    const Swap swap = store_->compare_and_set(each.key, each.expected, each.desired, one_try());
    // A try without an answer may have done it.
    const bool done_before = repeated && swap.value == each.desired;
    post(Swapped{each.request, swap.swapped || done_before, swap.value});
  }

  void refuse(const Publish& each, const Status& why) {
    post(Refused{std::string(scope_.local(each.key)), why});
  }
  void refuse(const Withdraw& each, const Status& why) {
    log::error("bus: {} cannot be withdrawn: {}", each.key, why.message);
  }
  void refuse(const CompareAndSet& each, const Status& why) {
    log::error("bus: {} cannot be set: {}", each.key, why.message);
    post(Swapped{each.request, false, std::nullopt});
  }

  void watch() {
    std::set<std::string> known;  // keys that there are
    while (!stopping()) {
      try {
        const auto watch = store_->watch(scope_.prefix(), true, one_try());
        post_all(forget_vanished(known));
        while (true) post_all(changes(watch->next_all(Deadline::never(), &cancellation_), known));
      } catch (...) {
        pause(options_.between_tries);
      }
    }
  }

  // What vanished while nobody watched.
  std::vector<DirectoryEvent> forget_vanished(std::set<std::string>& known) {
    const std::vector<std::string> there = store_->list(scope_.prefix(), one_try());  // sorted
    std::vector<DirectoryEvent> changes;
    std::erase_if(known, [&](const std::string& key) {
      if (std::ranges::binary_search(there, key)) return false;
      changes.emplace_back(Changed{std::string(scope_.local(key)), std::nullopt});
      return true;
    });
    return changes;
  }

  std::vector<DirectoryEvent> changes(std::vector<StoreEvent> events,
                                      std::set<std::string>& known) const {
    std::vector<DirectoryEvent> changes;
    changes.reserve(events.size());
    for (StoreEvent& event : events) {
      Changed changed{std::string(scope_.local(event.key)), std::nullopt};
      if (event.kind == StoreEvent::Kind::put) {
        changed.value = std::move(event.value);
        known.insert(std::move(event.key));
      } else {
        known.erase(event.key);
      }
      changes.emplace_back(std::move(changed));
    }
    return changes;
  }

  const std::shared_ptr<Store> store_;
  const StoreDirectoryOptions options_;
  const KeyScope scope_;
  const KeyScope shown_;
  Cancellation cancellation_;
  os::EventFd ready_;
  Mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  Deadline ends_by_ GUARDED_BY(mutex_) = Deadline::never();  // once we stop
  bool loss_untold_ GUARDED_BY(mutex_) = false;              // LeaseLost waits among the events
  std::deque<Request> requests_ GUARDED_BY(mutex_);
  std::vector<DirectoryEvent> events_ GUARDED_BY(mutex_);
  std::vector<DirectoryEvent> returned_;  // of whoever polls

  // Of the requesting thread.
  std::shared_ptr<Lease> lease_;
  bool unreachable_ = false;

  std::thread requester_;
  std::thread watcher_;
};

}  // namespace

std::unique_ptr<Directory> make_store_directory(std::shared_ptr<Store> store,
                                                StoreDirectoryOptions options) {
  return std::make_unique<StoreDirectory>(std::move(store), std::move(options));
}

std::string shared_secret(Store& store, const std::string& space, Deadline deadline) {
  const std::string key = KeyScope(space, "bus_secret").full("secret");
  const std::string mine = to_hex(view(random_id())) + to_hex(view(random_id()));
  return store.compare_and_set(key, std::nullopt, mine, deadline).value.value_or(mine);
}

}  // namespace tensorbus::bus
