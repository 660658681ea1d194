#include "store/native/request_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "store/common/limits.h"

namespace tensorbus::store {
namespace {

std::vector<std::string> wire_keys(std::span<const std::string> keys) {
  std::vector<std::string> wired;
  wired.reserve(keys.size());
  for (const std::string& key : keys) wired.push_back(wire_key(key));
  return wired;
}

std::vector<std::string> read_user_keys(Decoder& reply) {
  std::vector<std::string> keys;
  for (const std::string_view key : read_keys(reply)) keys.push_back(user_key(key));
  return keys;
}

LeaseId random_lease() {
  LeaseId id = 0;
  while (id == 0) std::memcpy(&id, random_id().data(), sizeof id);
  return id;
}

}  // namespace

std::string wire_key(std::string_view key) { return "/" + std::string(key); }

std::string user_key(std::string_view key) {
  if (key.starts_with('/')) key.remove_prefix(1);
  return std::string(key);
}

class RequestStore::LeaseHandle final : public Lease {
 public:
  LeaseHandle(RequestStore& store, std::shared_ptr<LeaseState> state)
      : store_(store), state_(std::move(state)) {}

  Duration time_to_live() const noexcept override { return state_->time_to_live; }
  bool alive() const noexcept override {
    const Lock lock(store_.leases_mutex_);
    return state_->alive;
  }
  void refresh(Deadline deadline) override { store_.refresh(*state_, deadline); }
  void revoke(Deadline deadline) override { store_.revoke(*state_, deadline); }

  LeaseState& state() const noexcept { return *state_; }
  bool belongs_to(const RequestStore& store) const noexcept { return &store_ == &store; }

 private:
  RequestStore& store_;
  std::shared_ptr<LeaseState> state_;
};

Capabilities RequestStore::capabilities() const {
  return {.leases = true, .watches = true, .server_waits = true, .exactly_once = true};
}

void RequestStore::set(std::span<const Entry> entries, Deadline deadline, Lease* lease) {
  check_entries(entries, max_value_size);
  if (entries.empty()) return;
  std::vector<Entry> wired;
  wired.reserve(entries.size());
  std::size_t size = 0;
  for (const Entry& entry : entries) {
    wired.push_back({wire_key(entry.key), entry.value});
    size += entry.key.size() + entry.value.size() + 16;
  }
  if (size > max_frame_size - 64) {
    throw Error(
        Code::invalid_argument,
        fmt::format("{} entries of {} bytes are too much for one call; at most {} bytes are "
                    "allowed",
                    entries.size(), size, max_frame_size - 64));
  }
  LeaseState* state = nullptr;
  if (lease != nullptr) {
    auto* handle = dynamic_cast<LeaseHandle*>(lease);
    if (handle == nullptr || !handle->belongs_to(*this)) {
      throw Error(Code::invalid_argument, "the lease belongs to another store");
    }
    state = &handle->state();
    const Lock lock(leases_mutex_);
    if (!state->alive) throw Error(Code::failed, "the lease has lapsed or was revoked");
  }
  {
    const Lock lock(leases_mutex_);
    for (const Entry& entry : wired) {
      forget_leased(entry.key);
      // The lease knows the key before the key is sent: if another server takes over meanwhile, the
      // key is published there.
      if (state != nullptr) state->keys[entry.key] = entry.value;
    }
  }
  call(Op::set, set_body(wired, state != nullptr ? state->id : 0), deadline);
}

std::vector<std::optional<std::string>> RequestStore::get(std::span<const std::string> keys,
                                                          Deadline deadline) {
  check_keys(keys);
  const std::string reply = call(Op::get, keys_body(wire_keys(keys)), deadline);
  Decoder decoder(reply);
  std::vector<std::optional<std::string>> values(keys.size());
  for (auto& value : values) {
    const bool present = decoder.integer<std::uint8_t>() != 0;
    const std::string_view bytes = decoder.string();
    if (present) value.emplace(bytes);
  }
  return values;
}

std::vector<std::optional<LeaseTime>> RequestStore::lease_times(std::span<const std::string> keys,
                                                                Deadline deadline) {
  check_keys(keys);
  const std::string reply = call(Op::lease_times, keys_body(wire_keys(keys)), deadline);
  Decoder decoder(reply);
  std::vector<std::optional<LeaseTime>> times(keys.size());
  for (auto& time : times) {
    const Duration time_to_live(decoder.integer<std::int64_t>());
    const Duration left(decoder.integer<std::int64_t>());
    if (time_to_live > Duration::zero()) time = {time_to_live, left};
  }
  return times;
}

bool RequestStore::exists(const std::string& key, Deadline deadline) {
  check_key(key);
  const std::string reply = call(Op::exists, keys_body({{wire_key(key)}}), deadline);
  return Decoder(reply).integer<std::uint8_t>() != 0;
}

bool RequestStore::erase(const std::string& key, Deadline deadline) {
  check_key(key);
  const std::string reply = call(Op::erase, keys_body({{wire_key(key)}}), deadline);
  const Lock lock(leases_mutex_);
  forget_leased(wire_key(key));
  return Decoder(reply).integer<std::uint32_t>() != 0;
}

std::int64_t RequestStore::add(const std::string& key, std::int64_t amount, Deadline deadline) {
  check_key(key);
  const std::string reply =
      call(Op::add, std::move(Encoder().string(wire_key(key)).integer(amount)).bytes(), deadline);
  const auto sum = Decoder(reply).integer<std::int64_t>();
  // An addition leaves the key under its lease.
  const Lock lock(leases_mutex_);
  for (const auto& [_, lease] : leases_) {
    const auto leased = lease->keys.find(wire_key(key));
    if (leased != lease->keys.end()) leased->second = std::to_string(sum);
  }
  return sum;
}

void RequestStore::join(Deadline deadline) {
  // torch's own key, without a "/" before it.
  call(Op::add, std::move(Encoder().string("init/").integer(std::int64_t{1})).bytes(), deadline);
}

Swap RequestStore::compare_and_set(const std::string& key,
                                   const std::optional<std::string>& expected,
                                   const std::string& desired, Deadline deadline) {
  const Entry entry{key, desired};
  check_entries({&entry, 1}, max_value_size);
  Encoder body;
  body.string(wire_key(key)).integer(static_cast<std::uint8_t>(expected.has_value()));
  body.string(expected.value_or("")).string(desired);
  const std::string reply = call(Op::swap, body.bytes(), deadline);
  Decoder decoder(reply);
  Swap swap;
  swap.swapped = decoder.integer<std::uint8_t>() != 0;
  const bool present = decoder.integer<std::uint8_t>() != 0;
  const std::string_view value = decoder.string();
  if (present) swap.value.emplace(value);
  if (swap.swapped) {
    const Lock lock(leases_mutex_);
    forget_leased(wire_key(key));
  }
  return swap;
}

std::vector<std::string> RequestStore::list(const std::string& prefix, Deadline deadline) {
  check_key(prefix);
  const std::string reply =
      call(Op::list, std::move(Encoder().string(wire_key(prefix))).bytes(), deadline);
  Decoder decoder(reply);
  return read_user_keys(decoder);
}

WaitResult RequestStore::wait(const Condition& condition, Deadline deadline,
                              Cancellation* cancellation) {
  check_condition(condition);
  Condition wired = condition;
  wired.key = wire_key(condition.key);
  const std::string reply = call(Op::wait, condition_body(wired), deadline, cancellation);
  Decoder decoder(reply);
  WaitResult result;
  result.keys = read_user_keys(decoder);
  result.value = decoder.string();
  return result;
}

void RequestStore::barrier(const std::string& name, std::size_t count, const std::string& member,
                           Deadline deadline, Cancellation* cancellation) {
  check_barrier(name, count);
  Encoder body;
  body.string(wire_key(name)).integer(static_cast<std::uint64_t>(count)).string(member);
  call(Op::barrier, body.bytes(), deadline, cancellation);
}

std::shared_ptr<Lease> RequestStore::lease(Duration time_to_live, LeaseOptions options,
                                           Deadline deadline) {
  check_time_to_live(time_to_live);
  auto state = std::make_shared<LeaseState>();
  state->id = random_lease();
  state->time_to_live = time_to_live;
  state->keep_alive = options.keep_alive;
  call(Op::grant, std::move(Encoder().integer(state->id).integer(time_to_live.count())).bytes(),
       deadline);
  const Lock lock(leases_mutex_);
  leases_.emplace(state->id, state);
  if (options.keep_alive && !keep_alive_thread_.joinable() && !leases_closed_) {
    keep_alive_thread_ = std::thread([this] { keep_alive(); });
  }
  leases_changed_.notify_all();
  return std::make_shared<LeaseHandle>(*this, std::move(state));
}

void RequestStore::refresh(LeaseState& lease, Deadline deadline) {
  const std::string reply =
      call(Op::refresh, std::move(Encoder().integer(lease.id)).bytes(), deadline);
  if (Decoder(reply).integer<std::uint8_t>() != 0) return;
  {
    const Lock lock(leases_mutex_);
    lease.alive = false;
    leases_.erase(lease.id);
  }
  throw Error(Code::failed, "the lease has lapsed: it was not renewed in time");
}

void RequestStore::revoke(LeaseState& lease, Deadline deadline) {
  {
    // First: whatever comes of the call, the lease is neither renewed nor published again.
    const Lock lock(leases_mutex_);
    lease.revoked = true;
    lease.alive = false;
    leases_.erase(lease.id);
  }
  call(Op::revoke, std::move(Encoder().integer(lease.id)).bytes(), deadline);
}

std::string RequestStore::describe(const LeaseState& lease) {
  const Lock lock(leases_mutex_);
  if (lease.keys.empty()) return "without keys";
  const std::string first = user_key(lease.keys.begin()->first);
  if (lease.keys.size() == 1) return fmt::format("of key \"{}\"", first);
  return fmt::format("of {} keys, the first is \"{}\"", lease.keys.size(), first);
}

void RequestStore::renew(const std::shared_ptr<LeaseState>& lease, Duration patience) {
  try {
    refresh(*lease, Deadline::after(patience));
    if (std::exchange(told_, false)) log::info("leases at {} are renewed again", url());
  } catch (const Error& error) {
    {
      const Lock lock(leases_mutex_);
      if (lease->revoked || leases_closed_) return;
    }
    if (server_ended_here() || !not_renewed_is_told_.due(telling_clock_->now())) return;
    told_ = true;
    log::warn(
        "a lease of this process at the store {} ({}) is not renewed: {}. Others take its holder "
        "for gone {} s after the last renewal; new ranks cannot join, calls to the store wait for "
        "it until their deadlines, all else goes on. It is tried again, and told at most once a "
        "minute",
        url(), describe(*lease), error.what(),
        std::chrono::duration<double>(lease->time_to_live).count());
  }
}

void RequestStore::keep_alive() {
  Lock lock(leases_mutex_);
  TimePoint next = now();
  while (!leases_closed_) {
    std::vector<std::shared_ptr<LeaseState>> kept;
    Duration shortest = Duration::max();
    for (const auto& [_, lease] : leases_) {
      if (!lease->keep_alive) continue;
      kept.push_back(lease);
      shortest = std::min(shortest, lease->time_to_live);
    }
    if (kept.empty()) {
      leases_changed_.wait(lock);
      next = now();
      continue;
    }
    next = std::min(next, now() + shortest / 3);
    if (now() < next) {
      leases_changed_.wait_until(lock, next);
      continue;
    }
    lock.unlock();
    for (const auto& lease : kept) renew(lease, shortest / 3);
    next = now() + shortest / 3;
    lock.lock();
  }
}

std::vector<std::string> RequestStore::lease_requests() {
  const Lock lock(leases_mutex_);
  std::vector<std::string> requests;
  for (const auto& [id, lease] : leases_) {
    Encoder entries;
    std::uint32_t count = 0;
    for (const auto& [key, value] : lease->keys) {
      if (entries.size() + key.size() + value.size() > max_frame_size - 1024) {
        log::warn("{} of {} keys of a lease are too much to publish again",
                  lease->keys.size() - count, lease->keys.size());
        break;
      }
      entries.string(key).string(value);
      ++count;
    }
    Encoder body;
    body.integer(id).integer(lease->time_to_live.count()).integer(count).raw(entries.bytes());
    requests.push_back(std::move(body).bytes());
  }
  return requests;
}

void RequestStore::forget_leased(std::string_view key) {
  for (const auto& [_, lease] : leases_) lease->keys.erase(std::string(key));
}

void RequestStore::end_leases(bool revoke) noexcept {
  if (forked()) return;
  std::map<LeaseId, std::shared_ptr<LeaseState>> leases;
  {
    const Lock lock(leases_mutex_);
    leases_closed_ = true;
    leases.swap(leases_);
    leases_changed_.notify_all();
  }
  for (const auto& [id, lease] : leases) {
    if (!revoke) break;
    try {
      call(Op::revoke, std::move(Encoder().integer(id)).bytes(),
           Deadline::after(std::chrono::seconds(2)));
    } catch (const Error& error) {
      if (!server_ended_here()) {
        log::warn("closing {}: a lease ({}) is left to lapse by itself: {}", url(),
                  describe(*lease), error.what());
      }
      break;
    }
  }
  {
    const Lock lock(leases_mutex_);
    for (const auto& [_, lease] : leases) lease->alive = false;
  }
}

void RequestStore::join_keep_alive() noexcept {
  if (!keep_alive_thread_.joinable()) return;
  // A forked child has the object but not the thread.
  forked() ? keep_alive_thread_.detach() : keep_alive_thread_.join();
}

}  // namespace tensorbus::store
