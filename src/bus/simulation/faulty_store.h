// A store in memory that fails, stalls, loses answers, breaks watches and lets leases lapse at the
// calls that a test names.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensorbus/store.h"

namespace tensorbus::bus {

class FaultyStore final : public Store {
 public:
  enum class Call { set, erase, swap, get, list, watch, next, lease, revoke };
  enum class Fault {
    none,
    refuse,       // nothing is done
    forget,       // done, and the answer is lost
    stall,        // nothing is done, which is known at the deadline
    late,         // done, and no answer comes until the deadline
    lapse,        // the leases lapse just before
    lapse_after,  // and just after it was done; the answer is lost
    outage,       // the next calls fail, too; leases lapse and watches break
  };
  static constexpr Fault last_fault = Fault::outage;
  static constexpr Call last_call = Call::revoke;

  // What happens at the `index`th call of its kind.
  void plan(Call call, std::size_t index, Fault fault) {
    locked([&] { plan_[{call, index}] = fault; });
  }
  // From now on every call is answered, but takes this long.
  void slow_down(Duration time) {
    locked([&] { takes_ = time; });
  }
  // From now on no call is answered.
  void stall_for_ever() {
    locked([&] { stalls_ = true; });
  }

  // What another client does.
  void put(const std::string& key, const std::string& value) {
    locked([&] { change(key, Value{value, 0}); });
  }
  void remove(const std::string& key) {
    locked([&] { change(key, std::nullopt); });
  }
  std::map<std::string, std::string> contents() {
    return locked([&] {
      std::map<std::string, std::string> all;
      for (const auto& [key, value] : values_) all.emplace(key, value.text);
      return all;
    });
  }
  // Leases that a client had and that lapsed.
  std::size_t lapses() {
    return locked([&] { return lapses_; });
  }
  // What was carried out: "set key=value", "erase key", "swap key=value".
  std::vector<std::string> done() {
    return locked([&] { return done_; });
  }

  Capabilities capabilities() const override {
    return {.leases = true, .watches = true, .server_waits = true, .exactly_once = false};
  }
  std::string url() const override { return "faulty"; }

  void set(std::span<const Entry> entries, Deadline deadline, Lease* lease) override {
    perform(Call::set, deadline, [&] {
      const std::uint64_t id = lease == nullptr ? 0 : dynamic_cast<Held&>(*lease).state->id;
      if (id != 0 && !leases_.contains(id)) throw Error(Code::failed, "there is no such lease");
      for (const Entry& entry : entries) {
        if (entry.value.size() > max_value_size) {
          throw Error(Code::invalid_argument, "the value is too large");
        }
        done_.push_back("set " + entry.key + "=" + entry.value);
        change(entry.key, Value{entry.value, id});
      }
      return true;
    });
  }
  bool erase(const std::string& key, Deadline deadline) override {
    return perform(Call::erase, deadline, [&] {
      done_.push_back("erase " + key);
      const bool was = values_.contains(key);
      change(key, std::nullopt);
      return was;
    });
  }
  Swap compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                       const std::string& desired, Deadline deadline) override {
    return perform(Call::swap, deadline, [&]() -> Swap {
      const auto found = values_.find(key);
      const bool equal = found == values_.end() ? !expected : expected == found->second.text;
      if (equal) {
        done_.push_back("swap " + key + "=" + desired);
        change(key, Value{desired, 0});
      }
      const auto now = values_.find(key);
      if (now == values_.end()) return {equal, std::nullopt};
      return {equal, now->second.text};
    });
  }
  std::vector<std::string> list(const std::string& prefix, Deadline deadline) override {
    return perform(Call::list, deadline, [&] {
      std::vector<std::string> keys;
      for (const auto& [key, value] : values_) {
        if (key.starts_with(prefix)) keys.push_back(key);
      }
      return keys;
    });
  }
  std::unique_ptr<Watch> watch(const std::string& prefix, bool current,
                               Deadline deadline) override {
    const auto made = perform(Call::watch, deadline, [&] {
      auto feed = std::make_shared<Feed>();
      feed->prefix = prefix;
      for (const auto& [key, value] : values_) {
        if (current && key.starts_with(prefix)) {
          feed->events.push_back({StoreEvent::Kind::put, key, value.text, ++revision_});
        }
      }
      feeds_.push_back(feed);
      return feed;
    });
    return std::make_unique<Watching>(*this, made);
  }
  std::shared_ptr<Lease> lease(Duration time_to_live, LeaseOptions, Deadline deadline) override {
    const auto state = std::make_shared<LeaseState>();
    state->time_to_live = time_to_live;
    try {
      perform(Call::lease, deadline, [&] {
        state->id = ++last_lease_;
        leases_.emplace(state->id, state);
        return true;
      });
    } catch (const Error&) {
      locked([&] { forget(*state); });
      throw;
    }
    return std::make_shared<Held>(*this, state);
  }

  std::vector<std::optional<std::string>> get(std::span<const std::string> keys,
                                              Deadline deadline) override {
    return perform(Call::get, deadline, [&] {
      std::vector<std::optional<std::string>> found;
      for (const std::string& key : keys) {
        const auto value = values_.find(key);
        found.push_back(value == values_.end() ? std::nullopt : std::optional(value->second.text));
      }
      return found;
    });
  }
  bool exists(const std::string&, Deadline) override { throw_unused(); }
  std::int64_t add(const std::string&, std::int64_t, Deadline) override { throw_unused(); }
  WaitResult wait(const Condition&, Deadline, Cancellation*) override { throw_unused(); }
  void barrier(const std::string&, std::size_t, const std::string&, Deadline,
               Cancellation*) override {
    throw_unused();
  }
  void join(Deadline) override {}
  void close(bool) noexcept override {}

 private:
  static constexpr int calls_of_an_outage = 6;
  // A client learns of a lapse from its next renewal, not at once.
  static constexpr int looks_before_it_is_known = 2;

  struct Value {
    std::string text;
    std::uint64_t lease = 0;
  };
  struct LeaseState {
    std::uint64_t id = 0;
    Duration time_to_live{};
    bool unknown = false;  // its client has never had it
    bool lapsed = false;
    int looks = 0;
  };
  struct Feed {
    std::string prefix;
    std::deque<StoreEvent> events;
    bool broken = false;
  };

  struct Held final : Lease {
    Held(FaultyStore& from, std::shared_ptr<LeaseState> of) : store(from), state(std::move(of)) {}
    Duration time_to_live() const noexcept override { return state->time_to_live; }
    bool alive() const noexcept override {
      return store.locked(
          [&] { return !state->lapsed || state->looks++ < looks_before_it_is_known; });
    }
    void refresh(Deadline) override { throw_unused(); }
    void revoke(Deadline deadline) override {
      store.perform(Call::revoke, deadline, [&] {
        store.drop(*state);
        return true;
      });
    }
    FaultyStore& store;
    const std::shared_ptr<LeaseState> state;
  };

  class Watching final : public Watch {
   public:
    Watching(FaultyStore& store, std::shared_ptr<Feed> feed) : store_(store), feed_(feed) {}
    ~Watching() override {
      store_.locked([&] { std::erase(store_.feeds_, feed_); });
    }
    StoreEvent next(Deadline, Cancellation*) override { throw_unused(); }
    std::vector<StoreEvent> next_all(Deadline deadline, Cancellation* cancellation) override {
      const Cancellation::Hook hook(cancellation, [&] { store_.changed_.notify_all(); });
      return store_.perform(Call::next, Deadline::after(std::chrono::milliseconds(1)),
                            [&] { return take(deadline, *cancellation); });
    }
    void close() noexcept override {}

   private:
    // Called with the store's lock.
    std::vector<StoreEvent> take(Deadline deadline, Cancellation& cancellation) {
      std::unique_lock lock(store_.mutex_, std::adopt_lock);
      while (feed_->events.empty() || feed_->broken) {
        const bool ends = feed_->broken || cancellation.cancelled() || deadline.expired();
        if (!ends) store_.changed_.wait_for(lock, std::chrono::milliseconds(1));
        if (ends) lock.release();
        if (ends) throw Error(Code::unreachable, "the watch is over");
      }
      lock.release();
      const auto events = std::exchange(feed_->events, {});
      return {events.begin(), events.end()};
    }

    FaultyStore& store_;
    const std::shared_ptr<Feed> feed_;
  };

  [[noreturn]] static void throw_unused() {
    throw Error(Code::unsupported, "a directory has no use for it");
  }

  template <typename Do>
  std::invoke_result_t<Do> locked(Do what) {
    const std::lock_guard lock(mutex_);
    return what();
  }

  template <typename Apply>
  std::invoke_result_t<Apply> perform(Call call, Deadline deadline, Apply apply) {
    std::unique_lock lock(mutex_);
    const auto found = plan_.find({call, counts_[call]++});
    const Fault fault = found == plan_.end() ? Fault::none : found->second;
    if (call != Call::next) answer_slowly(lock, deadline);
    if (fault == Fault::lapse || fault == Fault::outage) lapse();
    if (fault == Fault::outage) begin_outage();
    if (fault == Fault::refuse || std::exchange(outage_, std::max(outage_ - 1, 0)) > 0) {
      throw Error(Code::unreachable, "the store cannot be reached");
    }
    if (fault == Fault::stall) wait_until(lock, deadline);
    auto result = apply();
    if (fault == Fault::lapse_after) lapse();
    if (fault == Fault::late) wait_until(lock, deadline);
    if (fault == Fault::forget || fault == Fault::lapse_after) {
      throw Error(Code::unreachable, "the connection was lost");
    }
    return result;
  }

  void answer_slowly(std::unique_lock<std::mutex>& lock, Deadline deadline) {
    if (stalls_ || takes_ > deadline.remaining()) wait_until(lock, deadline);
    if (takes_ > Duration::zero()) changed_.wait_for(lock, takes_, [] { return false; });
  }
  [[noreturn]] void wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline) {
    changed_.wait_until(lock, deadline.at(), [] { return false; });
    throw Error(Code::timeout, "the store has not answered in time");
  }

  void change(const std::string& key, std::optional<Value> value) {
    const StoreEvent::Kind kind = value ? StoreEvent::Kind::put : StoreEvent::Kind::erase;
    const std::string text = value ? value->text : "";
    if (value) {
      values_[key] = *std::move(value);
    } else if (values_.erase(key) == 0) {
      return;
    }
    ++revision_;
    for (const auto& feed : feeds_) {
      if (key.starts_with(feed->prefix)) feed->events.push_back({kind, key, text, revision_});
    }
    changed_.notify_all();
  }

  void drop(const LeaseState& lease) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : values_) {
      if (value.lease == lease.id) keys.push_back(key);
    }
    for (const std::string& key : keys) change(key, std::nullopt);
    leases_.erase(lease.id);
  }

  void lapse() {
    for (const auto& [id, lease] : std::map(leases_)) {
      lease->lapsed = true;
      if (!lease->unknown) ++lapses_;
      drop(*lease);
    }
  }

  void forget(LeaseState& lease) {
    lease.unknown = true;
    if (lease.lapsed) --lapses_;
  }

  void begin_outage() {
    outage_ = calls_of_an_outage;
    for (const auto& feed : feeds_) feed->broken = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<Call, std::size_t>, Fault> plan_;
  std::map<Call, std::size_t> counts_;
  int outage_ = 0;
  bool stalls_ = false;
  Duration takes_{};
  std::map<std::string, Value> values_;
  std::uint64_t revision_ = 0;
  std::uint64_t last_lease_ = 0;
  std::map<std::uint64_t, std::shared_ptr<LeaseState>> leases_;
  std::vector<std::shared_ptr<Feed>> feeds_;
  std::size_t lapses_ = 0;
  std::vector<std::string> done_;
};

}  // namespace tensorbus::bus
