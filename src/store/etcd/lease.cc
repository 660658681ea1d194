#include "store/etcd/lease.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "os/process/process.h"

namespace tensorbus::store::etcd {
namespace {

// How long a member that was killed inside a barrier is still counted.
constexpr std::chrono::seconds presence_time_to_live{10};
// One lease must not hold up the others while etcd is silent.
constexpr std::chrono::seconds keep_alive_limit{2};

Duration keep_alive_interval(const LeaseState& lease) { return Duration(lease.time_to_live) / 3; }

Json lease_id(const LeaseState& lease) { return {{"ID", std::to_string(lease.id)}}; }

}  // namespace

void throw_lapsed() {
  throw Error(Code::failed,
              "the lease has lapsed or was revoked, and its keys are gone: take a new "
              "lease and set them again");
}

std::shared_ptr<LeaseState> Leases::grant(Duration time_to_live, bool keep_alive,
                                          const Call& call) {
  auto lease = take(std::chrono::ceil<std::chrono::seconds>(time_to_live), keep_alive, true, call);
  signal_.notify([&]() REQUIRES(signal_.mutex) { owned_.push_back(lease); });
  if (keep_alive) keep(lease);
  return lease;
}

std::shared_ptr<LeaseState> Leases::take(std::chrono::seconds time_to_live, bool keep_alive,
                                         bool publish_again, const Call& call) {
  auto lease = std::make_shared<LeaseState>();
  lease->id = random_lease_id();
  lease->keep_alive = keep_alive;
  lease->publish_again = publish_again;
  const std::string data_id = access_->session.data_id(call);
  const TimePoint asked = now();
  lease->time_to_live =
      std::chrono::seconds(grant_lease(access_->gateway, lease->id, time_to_live.count(), call));
  lease->due = asked + keep_alive_interval(*lease);
  const Lock lock(lease->mutex);
  lease->data_id = data_id;
  lease->refreshed = asked;
  return lease;
}

bool Leases::alive(LeaseState& lease) const {
  const Lock lock(lease.mutex);
  if (lease.dead) return false;
  // Only etcd knows when a lease that is kept alive has lapsed: the clock of etcd stands still
  // while etcd is down. A lease that is not kept alive lapses unless somebody refreshes it in time.
  return lease.keep_alive || now() < lease.refreshed + lease.time_to_live;
}

bool Leases::refresh(LeaseState& lease, const Call& call) {
  const TimePoint asked = now();
  const Answer answer = access_->gateway.call("/v3/lease/keepalive", lease_id(lease), call);
  if (number(child(answer.json, "result"), "TTL") <= 0) return recover(lease, call);
  const Lock lock(lease.mutex);
  lease.refreshed = asked;
  return !lease.dead;
}

bool Leases::recover(LeaseState& lease, const Call& call) {
  const std::string data_id = access_->session.data_id(call);
  const TimePoint asked = now();
  {
    const Lock lock(lease.mutex);
    if (lease.data_id == data_id || !lease.publish_again) lease.dead = true;
    if (lease.dead) return false;
  }
  log::warn("{} came back without its data: publishing the keys of a lease again",
            access_->gateway.name());
  grant_lease(access_->gateway, lease.id, lease.time_to_live.count(), call);
  publish(lease, call);
  const Lock lock(lease.mutex);
  lease.data_id = data_id;
  lease.refreshed = asked;
  return !lease.dead;
}

void Leases::publish(LeaseState& lease, const Call& call) {
  std::map<std::string, std::string> entries;
  {
    const Lock lock(lease.mutex);
    entries = lease.entries;
  }
  // Key by key and only where nothing is: a newer value that was set meanwhile stays.
  for (const auto& [key, value] : entries) {
    Transaction transaction;
    transaction.compare.push_back(version_is(key, 0));
    transaction.success.push_back(put(key, value, lease.id));
    access_->session.write(transaction, call);
  }
}

void Leases::revoke(const std::shared_ptr<LeaseState>& lease, const Call& call) {
  revoke_lease(access_->gateway, lease->id, call);
  {
    const Lock lock(lease->mutex);
    lease->dead = true;
    lease->entries.clear();
  }
  signal_.notify([&]() REQUIRES(signal_.mutex) { std::erase(owned_, lease); });
}

void Leases::remember(LeaseState* lease, std::span<const Entry> entries) {
  for (const Entry& entry : entries) forget(entry.key);
  if (lease == nullptr) return;
  const Lock lock(lease->mutex);
  for (const Entry& entry : entries) lease->entries[entry.key] = entry.value;
}

void Leases::forget(const std::string& key) {
  const Lock lock(signal_.mutex);
  for (const auto& lease : owned_) {
    const Lock lease_lock(lease->mutex);
    lease->entries.erase(key);
  }
}

void Leases::revise(const std::string& key, const std::string& value) {
  const Lock lock(signal_.mutex);
  for (const auto& lease : owned_) {
    const Lock lease_lock(lease->mutex);
    if (const auto found = lease->entries.find(key); found != lease->entries.end()) {
      found->second = value;
    }
  }
}

std::shared_ptr<Presence> Leases::presence(const Call& call) {
  {
    const Lock lock(signal_.mutex);
    if (presence_ && alive(*presence_->lease)) return presence_;
  }
  auto presence = std::make_shared<Presence>();
  presence->lease = take(presence_time_to_live, true, false, call);
  presence->key = own_key("presence/" + random_name());
  Transaction transaction;
  transaction.success.push_back(put(presence->key, "", presence->lease->id));
  access_->session.write(transaction, call);
  // If another caller was faster, this one lives as long as its user and then lapses.
  signal_.notify([&]() REQUIRES(signal_.mutex) {
    if (!presence_ || !alive(*presence_->lease)) presence_ = presence;
  });
  keep(presence->lease);
  return presence;
}

void Leases::retire(const std::shared_ptr<Presence>& presence) {
  signal_.notify([&]() REQUIRES(signal_.mutex) {
    if (presence_ == presence) presence_.reset();
  });
}

void Leases::keep(const std::shared_ptr<LeaseState>& lease) {
  signal_.notify([&]() REQUIRES(signal_.mutex) {
    if (stopped_) throw Error(Code::cancelled, "the store was closed");
    kept_.push_back(lease);
    ++changes_;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  });
}

std::shared_ptr<LeaseState> Leases::next_due() {
  std::shared_ptr<LeaseState> first;
  TimePoint first_due = TimePoint::max();
  std::erase_if(kept_, [&](const std::weak_ptr<LeaseState>& weak) {
    const auto lease = weak.lock();
    if (!lease) return true;
    const Lock lock(lease->mutex);
    if (lease->dead) return true;
    if (lease->due < first_due) {
      first_due = lease->due;
      first = lease;
    }
    return false;
  });
  return first;
}

void Leases::run() {
  os::block_signals_in_this_thread();
  Call background = access_->call(Deadline::never());
  background.interruptible = false;
  while (true) {
    std::shared_ptr<LeaseState> lease;
    std::uint64_t seen = 0;
    Deadline due = Deadline::never();
    {
      const Lock lock(signal_.mutex);
      lease = next_due();
      seen = changes_;
      if (lease) due = Deadline(lease->due);
    }
    try {
      if (signal_.wait(background.until(due),
                       [&]() REQUIRES(signal_.mutex) { return stopped_ || changes_ != seen; })) {
        const Lock lock(signal_.mutex);
        if (stopped_) return;
        continue;
      }
      const Duration interval = keep_alive_interval(*lease);
      const Duration limit = std::min<Duration>(interval, keep_alive_limit);
      lease->due = now() + interval;
      if (!refresh(*lease, background.until(Deadline::after(limit)))) {
        log::error("a lease lapsed because {} was not reached in time; its keys are gone",
                   access_->gateway.name());
      }
      lease->failing = false;
    } catch (const Error& error) {
      if (error.code() == Code::cancelled) return;
      if (!std::exchange(lease->failing, true)) {
        log::warn("a lease could not be kept alive, trying again: {}", error.what());
      }
      lease->due = std::min(lease->due, now() + std::chrono::milliseconds(100));
    }
  }
}

void Leases::stop() noexcept {
  std::thread thread;
  signal_.notify([&]() REQUIRES(signal_.mutex) {
    stopped_ = true;
    thread = std::move(thread_);
  });
  if (thread.joinable()) thread.join();
}

void Leases::revoke_at_close(bool all, const Call& call) {
  std::vector<std::shared_ptr<LeaseState>> leases;
  signal_.notify([&]() REQUIRES(signal_.mutex) {
    if (all) leases = owned_;
    if (presence_) leases.push_back(presence_->lease);
    presence_.reset();
  });
  for (const auto& lease : leases) revoke(lease, call);
}

void EtcdLease::refresh(Deadline deadline) {
  if (!leases_->refresh(*state_, access_->call(deadline))) throw_lapsed();
}

}  // namespace tensorbus::store::etcd
