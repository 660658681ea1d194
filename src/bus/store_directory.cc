#include "bus/store_directory.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/secret.h"
#include "os/poll.h"

namespace tensorbus::bus {
namespace {

using std::chrono::milliseconds;

constexpr const char* component = "bus";
constexpr Duration one_try = std::chrono::seconds(1);
constexpr Duration between_tries = milliseconds(100);
constexpr Duration look_at_lease_every = milliseconds(500);

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

class StoreDirectory final : public Directory {
 public:
  StoreDirectory(std::shared_ptr<Store> store, StoreDirectoryOptions options)
      : store_(std::move(store)), options_(options), scope_(options.space, component) {
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
      const std::lock_guard lock(mutex_);
      stopping_ = true;
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
  void compare_and_set(std::string key, std::optional<std::string> expected, std::string desired,
                       std::uint64_t request) override {
    push(CompareAndSet{scope_.full(key), std::move(expected), std::move(desired), request});
  }

  std::span<const DirectoryEvent> poll() override {
    returned_.clear();
    const std::lock_guard lock(mutex_);
    if (events_.empty()) return {};
    ready_.drain();
    returned_.swap(events_);
    return returned_;
  }
  bool arm() override {
    const std::lock_guard lock(mutex_);
    return events_.empty();
  }
  int fd() const noexcept override { return ready_.get(); }

 private:
  void push(Request request) {
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(std::move(request));
    }
    wake_.notify_all();
  }

  void post(DirectoryEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    ready_.signal();
  }

  bool stopping() {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }

  void pause(Duration time) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, time, [this] { return stopping_; });
  }

  // Again and again, until it is done or we stop. True if done.
  bool insist(const std::function<void()>& call) {
    for (bool again = false;; again = true) {
      try {
        call();
        if (std::exchange(unreachable_, false)) post(Reachable{});
        return true;
      } catch (...) {
        const Status why = current_exception_status();
        if (stopping()) return false;
        // Told when it lasts: who ends together with its store has nobody to tell.
        if (again && !std::exchange(unreachable_, true)) post(Reachable{why});
      }
      pause(between_tries);
      if (stopping()) return false;
    }
  }

  void make_requests() {
    while (true) {
      Request request;
      {
        std::unique_lock lock(mutex_);
        const bool work = wake_.wait_for(lock, look_at_lease_every,
                                         [this] { return stopping_ || !requests_.empty(); });
        // Who leaves does not wait for a store that is away.
        if (stopping_ && (requests_.empty() || unreachable_)) break;
        if (!work || requests_.empty()) {
          lock.unlock();
          look_at_lease();
          continue;
        }
        request = std::move(requests_.front());
        requests_.pop_front();
      }
      look_at_lease();
      if (!insist([&] { std::visit([this](const auto& each) { make(each); }, request); })) break;
    }
    try {
      if (lease_ != nullptr) lease_->revoke(Deadline::after(one_try));
    } catch (const Error&) {
      // It lapses by itself.
    }
  }

  void look_at_lease() {
    if (lease_ == nullptr || lease_->alive()) return;
    lease_.reset();
    post(LeaseLost{{Code::peer_lost, "its lease at the store has lapsed"}});
  }

  void make(const Publish& each) {
    const Deadline deadline = Deadline::after(one_try);
    if (lease_ == nullptr) lease_ = store_->lease(options_.time_to_live, {}, deadline);
    const Entry entry{each.key, each.value};
    store_->set(std::span(&entry, 1), deadline, lease_.get());
  }
  void make(const Withdraw& each) { store_->erase(each.key, Deadline::after(one_try)); }
  void make(const CompareAndSet& each) {
    const Swap swap =
        store_->compare_and_set(each.key, each.expected, each.desired, Deadline::after(one_try));
    post(Swapped{each.request, swap.swapped, swap.value});
  }

  void watch() {
    std::set<std::string> known;
    while (!stopping()) {
      try {
        const auto watch = store_->watch(scope_.prefix(), true, Deadline::after(one_try));
        // What vanished while nobody watched.
        std::set<std::string> there;
        for (std::string& key : store_->list(scope_.prefix(), Deadline::after(one_try))) {
          there.insert(std::move(key));
        }
        std::erase_if(known, [&](const std::string& key) {
          if (there.contains(key)) return false;
          post(Changed{std::string(scope_.local(key)), std::nullopt});
          return true;
        });
        while (true) {
          StoreEvent event = watch->next(Deadline::never(), &cancellation_);
          const bool put = event.kind == StoreEvent::Kind::put;
          if (put) {
            known.insert(event.key);
          } else {
            known.erase(event.key);
          }
          Changed changed{std::string(scope_.local(event.key)), std::nullopt};
          if (put) changed.value = std::move(event.value);
          post(std::move(changed));
        }
      } catch (...) {
        pause(between_tries);
      }
    }
  }

  const std::shared_ptr<Store> store_;
  const StoreDirectoryOptions options_;
  const KeyScope scope_;
  Cancellation cancellation_;
  os::EventFd ready_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::deque<Request> requests_;
  std::vector<DirectoryEvent> events_;
  std::vector<DirectoryEvent> returned_;

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
