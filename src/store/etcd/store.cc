#include "store/etcd/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "base/log.h"
#include "base/mutex.h"
#include "store/common/lease_times.h"
#include "store/common/limits.h"
#include "store/etcd/barrier.h"
#include "store/etcd/lease.h"
#include "store/etcd/wait.h"
#include "store/etcd/watch.h"

namespace tensorbus::store {
namespace {

using namespace etcd;

constexpr std::size_t largest_value = 1'500'000;
// etcd's own limit for one request, less what surrounds the entries.
constexpr std::size_t largest_set = 1'572'864 - 16 * 1024;
constexpr std::size_t entry_overhead = 32;
// How long close() may take to tidy up.
constexpr std::chrono::seconds close_limit{2};

void check_key_for_etcd(const std::string& key) {
  check_key(key);
  if (key.empty()) throw Error(Code::invalid_argument, "etcd has no empty key");
  if (is_own(key)) {
    throw Error(
        Code::invalid_argument,
        fmt::format("key \"{}\": what starts with \"{}\" belongs to the library", key, own_prefix));
  }
}

std::int64_t parse_counter(const std::string& key, const std::string& digits) {
  std::int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    throw Error(
        Code::invalid_argument,
        fmt::format("key \"{}\" does not hold a decimal number, so nothing can be added", key));
  }
  return value;
}

class EtcdStore final : public Store, public LeaseTimes {
 public:
  explicit EtcdStore(const StoreUrl& url)
      : url_(url.to_string()),
        access_(std::make_shared<Access>(url)),
        leases_(std::make_shared<Leases>(access_)) {}
  ~EtcdStore() override { close(false); }

  // Finds out whether etcd is there and lets us in.
  void open(Deadline deadline) { access_->session.data_id(call(deadline)); }

  Capabilities capabilities() const override { return {true, true, true, true, largest_value}; }
  std::string url() const override { return url_; }

  void set(std::span<const Entry> entries, Deadline deadline, Lease* lease) override;
  std::vector<std::optional<std::string>> get(std::span<const std::string> keys,
                                              Deadline deadline) override;
  bool exists(const std::string& key, Deadline deadline) override;
  bool erase(const std::string& key, Deadline deadline) override;
  std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline) override;
  Swap compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                       const std::string& desired, Deadline deadline) override;
  std::vector<std::string> list(const std::string& prefix, Deadline deadline) override;

  WaitResult wait(const Condition& condition, Deadline deadline,
                  Cancellation* cancellation) override;
  void barrier(const std::string& name, std::size_t count, const std::string& member,
               Deadline deadline, Cancellation* cancellation) override;
  std::unique_ptr<Watch> watch(const std::string& prefix, bool current, Deadline deadline) override;
  std::shared_ptr<Lease> lease(Duration time_to_live, LeaseOptions options,
                               Deadline deadline) override;
  std::vector<std::optional<LeaseTime>> lease_times(std::span<const std::string> keys,
                                                    Deadline deadline) override;
  void join(Deadline) override {}
  void close(bool cleanup) noexcept override;

 private:
  using Value = std::optional<std::string>;
  // What a key holds, since when, and for how long.
  struct Held {
    Value value;
    std::int64_t mod_revision = 0;
    std::int64_t lease = 0;
  };

  Call call(Deadline deadline, Cancellation* cancellation = nullptr) {
    return access_->call(deadline, cancellation);
  }
  static Held held_in(const Json& range_answer);
  std::vector<Held> look_at(std::span<const std::string> keys, const Call& call);
  // Nothing if the lease has lapsed.
  std::optional<LeaseTime> time_of(std::int64_t lease, const Call& call);
  // Reads the key and writes what `decide` makes of it, again if it changed in between. Returns the
  // value there is then, and whether anything was written.
  std::pair<Value, bool> update(const std::string& key, bool keep_lease, const Call& call,
                                const std::function<Value(const Value&)>& decide);
  LeaseState* state_of(Lease* lease) const;

  const std::string url_;
  const std::shared_ptr<Access> access_;
  const std::shared_ptr<Leases> leases_;
  Mutex close_mutex_;
  bool closed_ GUARDED_BY(close_mutex_) = false;
};

void EtcdStore::set(std::span<const Entry> entries, Deadline deadline, Lease* lease) {
  check_entries(entries, largest_value);
  LeaseState* state = state_of(lease);
  // etcd refuses a key that comes twice; the last one counts.
  std::map<std::string_view, std::string_view> distinct;
  std::size_t size = 0;
  for (const Entry& entry : entries) {
    check_key_for_etcd(entry.key);
    distinct[entry.key] = entry.value;
    size += entry.key.size() + entry.value.size() + entry_overhead;
  }
  if (size > largest_set) {
    throw Error(Code::invalid_argument,
                fmt::format("{} entries with {} bytes in all: etcd takes at most {} at one moment; "
                            "set them in several calls",
                            entries.size(), size, largest_set));
  }
  if (entries.empty()) return;
  Transaction transaction;
  std::vector<Json> puts;
  for (const auto& [key, value] : distinct) {
    puts.push_back(put(key, value, state == nullptr ? 0 : state->id));
  }
  transaction.success = packed(std::move(puts));
  const Call until = call(deadline);
  while (true) {
    if (state != nullptr && !leases_->alive(*state)) throw_lapsed();
    try {
      access_->session.write(transaction, until);
      leases_->remember(state, entries);
      return;
    } catch (const Refusal& refusal) {
      if (refusal.kind() != Refusal::Kind::lease_not_found || state == nullptr) throw;
      if (!leases_->recover(*state, until)) throw_lapsed();
    }
  }
}

LeaseState* EtcdStore::state_of(Lease* lease) const {
  if (lease == nullptr) return nullptr;
  auto* ours = dynamic_cast<EtcdLease*>(lease);
  if (ours == nullptr || !ours->belongs_to(*leases_)) {
    throw Error(Code::invalid_argument, "the lease was taken from another store");
  }
  return &ours->state();
}

std::vector<std::optional<std::string>> EtcdStore::get(std::span<const std::string> keys,
                                                       Deadline deadline) {
  check_keys(keys);
  std::vector<Value> values;
  values.reserve(keys.size());
  for (Held& held : look_at(keys, call(deadline))) values.push_back(std::move(held.value));
  return values;
}

std::vector<EtcdStore::Held> EtcdStore::look_at(std::span<const std::string> keys,
                                                const Call& call) {
  std::vector<Held> all;
  all.reserve(keys.size());
  while (all.size() < keys.size()) {
    const auto part = keys.subspan(all.size(), std::min(max_operations, keys.size() - all.size()));
    Json ranges = Json::array();
    for (const std::string& key : part) ranges.push_back(range(KeyRange::one(key)));
    const Json answer = access_->gateway.call("/v3/kv/txn", {{"success", ranges}}, call).json;
    for (std::size_t i = 0; i < part.size(); ++i) {
      all.push_back(held_in(response_at(answer, i, "response_range")));
    }
  }
  return all;
}

std::vector<std::optional<LeaseTime>> EtcdStore::lease_times(std::span<const std::string> keys,
                                                             Deadline deadline) {
  check_keys(keys);
  const Call until = call(deadline);
  std::vector<std::optional<LeaseTime>> times;
  times.reserve(keys.size());
  std::map<std::int64_t, std::optional<LeaseTime>> known{{0, std::nullopt}};
  for (const Held& held : look_at(keys, until)) {
    if (!known.contains(held.lease)) known[held.lease] = time_of(held.lease, until);
    times.push_back(known[held.lease]);
  }
  return times;
}

// etcd tells whole seconds and drops the rest: up to one more is left, and whoever is warned of a
// lapse must not be warned for nothing.
std::optional<LeaseTime> EtcdStore::time_of(std::int64_t lease, const Call& call) {
  const Json question = {{"ID", std::to_string(lease)}};
  const Json answer = access_->gateway.call("/v3/lease/timetolive", question, call).json;
  const std::chrono::seconds granted(number(answer, "grantedTTL"));
  const std::chrono::seconds left(number(answer, "TTL"));
  if (granted.count() <= 0 || left.count() < 0) return std::nullopt;
  return LeaseTime{granted, std::min(granted, left + std::chrono::seconds(1))};
}

EtcdStore::Held EtcdStore::held_in(const Json& range_answer) {
  auto found = key_values(range_answer);
  if (found.empty()) return {};
  KeyValue& held = found.front();
  return {std::move(held.value), held.mod_revision, held.lease};
}

bool EtcdStore::exists(const std::string& key, Deadline deadline) {
  check_key(key);
  const Json question = range(KeyRange::one(key), true)["request_range"];
  return number(access_->gateway.call("/v3/kv/range", question, call(deadline)).json, "count") > 0;
}

bool EtcdStore::erase(const std::string& key, Deadline deadline) {
  check_key_for_etcd(key);
  Transaction transaction;
  transaction.compare.push_back(etcd::exists(key));
  transaction.success.push_back(etcd::erase(key));
  const bool existed = access_->session.write(transaction, call(deadline)).applied;
  leases_->forget(key);
  return existed;
}

std::pair<EtcdStore::Value, bool> EtcdStore::update(
    const std::string& key, bool keep_lease, const Call& call,
    const std::function<Value(const Value&)>& decide) {
  const Json read = range(KeyRange::one(key));
  Held held = held_in(access_->gateway.call("/v3/kv/range", read["request_range"], call).json);
  while (true) {
    const Value decided = decide(held.value);
    if (!decided) return {std::move(held.value), false};
    Transaction transaction;
    transaction.compare.push_back(unchanged_since(key, held.mod_revision));
    Json write = put(key, *decided);
    if (keep_lease && held.value) write["request_put"]["ignore_lease"] = true;
    transaction.success.push_back(std::move(write));
    transaction.failure.push_back(read);
    const WriteResult result = access_->session.write(transaction, call);
    if (result.applied) {
      keep_lease ? leases_->revise(key, *decided) : leases_->forget(key);
      return {decided, true};
    }
    held = held_in(result.response(0, "response_range"));
  }
}

std::int64_t EtcdStore::add(const std::string& key, std::int64_t amount, Deadline deadline) {
  check_key_for_etcd(key);
  std::int64_t sum = 0;
  update(key, true, call(deadline), [&](const Value& held) -> Value {
    const std::int64_t before = held ? parse_counter(key, *held) : 0;
    if (__builtin_add_overflow(before, amount, &sum)) {
      throw Error(Code::invalid_argument,
                  fmt::format("key \"{}\": {} + {} does not fit in 64 bits", key, before, amount));
    }
    return std::to_string(sum);
  });
  return sum;
}

Swap EtcdStore::compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                                const std::string& desired, Deadline deadline) {
  check_key_for_etcd(key);
  const Entry wanted{key, desired};
  check_entries({&wanted, 1}, largest_value);
  const auto decide = [&](const Value& present) {
    return present == expected ? Value(desired) : Value();
  };
  const auto [value, swapped] = update(key, false, call(deadline), decide);
  return {swapped, value};
}

std::vector<std::string> EtcdStore::list(const std::string& prefix, Deadline deadline) {
  check_key(prefix);
  const Json question = range(KeyRange::prefix(prefix), true)["request_range"];
  std::vector<std::string> keys;
  for (KeyValue& found :
       key_values(access_->gateway.call("/v3/kv/range", question, call(deadline)).json)) {
    if (!is_own(found.key)) keys.push_back(std::move(found.key));
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

WaitResult EtcdStore::wait(const Condition& condition, Deadline deadline,
                           Cancellation* cancellation) {
  check_condition(condition);
  return etcd::wait(access_, condition, call(deadline, cancellation));
}

void EtcdStore::barrier(const std::string& name, std::size_t count, const std::string& member,
                        Deadline deadline, Cancellation* cancellation) {
  check_barrier(name, count);
  Barrier(access_, *leases_, name, count, member).pass(call(deadline, cancellation));
}

std::unique_ptr<Watch> EtcdStore::watch(const std::string& prefix, bool current,
                                        Deadline deadline) {
  check_key(prefix);
  return std::make_unique<EtcdWatch>(access_, prefix, current, deadline);
}

std::shared_ptr<Lease> EtcdStore::lease(Duration time_to_live, LeaseOptions options,
                                        Deadline deadline) {
  check_time_to_live(time_to_live);
  return std::make_shared<EtcdLease>(
      access_, leases_, leases_->grant(time_to_live, options.keep_alive, call(deadline)));
}

void EtcdStore::close(bool cleanup) noexcept {
  const Lock lock(close_mutex_);
  if (closed_) return;
  closed_ = true;
  if (access_->forked()) {
    // Threads that are not there cannot be joined, so what waits for them is never destroyed.
    new auto(access_);
    new auto(leases_);
    return;
  }
  access_->closing.cancel();
  leases_->stop();
  if (cleanup || access_->gateway.reachable()) {
    Call last{Deadline::after(close_limit)};
    last.interruptible = false;
    try {
      leases_->revoke_at_close(cleanup, last);
      access_->session.end(last);
    } catch (const std::exception& error) {
      log::warn("closing {}: {}; leases lapse by themselves", url_, error.what());
    }
  }
  access_->gateway.stop();
}

}  // namespace

std::unique_ptr<Store> connect_etcd(const StoreUrl& url, const ConnectOptions& options) {
  auto store = std::make_unique<EtcdStore>(url);
  store->open(options.deadline);
  return store;
}

}  // namespace tensorbus::store
