// Leases of etcd, and the thread that keeps them alive.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "store/etcd/access.h"

namespace tensorbus::store::etcd {

struct LeaseState {
  std::int64_t id = 0;
  bool keep_alive = true;
  // Whether the lease's keys are set again when etcd comes back without its data.
  bool publish_again = true;
  std::chrono::seconds time_to_live{0};

  // Of the keeping thread alone.
  TimePoint due;
  bool failing = false;

  Mutex mutex;
  std::string data_id GUARDED_BY(mutex);  // of the etcd that granted it
  TimePoint refreshed GUARDED_BY(mutex);
  bool dead GUARDED_BY(mutex) = false;
  std::map<std::string, std::string> entries GUARDED_BY(mutex);  // set under it by this client
};

// Says that this process is there: the key exists as long as the lease lives.
struct Presence {
  std::shared_ptr<LeaseState> lease;
  std::string key;
};

class Leases {
 public:
  explicit Leases(std::shared_ptr<Access> access) : access_(std::move(access)) {}
  ~Leases() { stop(); }
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  std::shared_ptr<LeaseState> grant(Duration time_to_live, bool keep_alive, const Call& call);
  bool alive(LeaseState& lease) const;
  // False when the lease is gone for good.
  bool refresh(LeaseState& lease, const Call& call);
  // For a lease that etcd does not know: takes the lease again, with its keys, if etcd lost its
  // data. False if the lease merely lapsed; then the lease is dead.
  bool recover(LeaseState& lease, const Call& call);
  void revoke(const std::shared_ptr<LeaseState>& lease, const Call& call);

  // Which keys come back with their lease. `lease` is null for keys that were set without one.
  void remember(LeaseState* lease, std::span<const Entry> entries);
  void forget(const std::string& key);
  // The key changed and kept its lease.
  void revise(const std::string& key, const std::string& value);

  std::shared_ptr<Presence> presence(const Call& call);
  // The presence is no longer kept alive, so that its key lapses.
  void retire(const std::shared_ptr<Presence>& presence);

  // Ends the thread.
  void stop() noexcept;
  // After stop(): the presence, and with `all` every lease of this client.
  void revoke_at_close(bool all, const Call& call);

 private:
  std::shared_ptr<LeaseState> take(std::chrono::seconds time_to_live, bool keep_alive,
                                   bool publish_again, const Call& call);
  void publish(LeaseState& lease, const Call& call);
  void keep(const std::shared_ptr<LeaseState>& lease);
  std::shared_ptr<LeaseState> next_due() REQUIRES(signal_.mutex);
  void run();

  const std::shared_ptr<Access> access_;
  Signal signal_;
  std::vector<std::shared_ptr<LeaseState>> owned_ GUARDED_BY(signal_.mutex);
  std::vector<std::weak_ptr<LeaseState>> kept_ GUARDED_BY(signal_.mutex);
  std::shared_ptr<Presence> presence_ GUARDED_BY(signal_.mutex);
  std::uint64_t changes_ GUARDED_BY(signal_.mutex) = 0;
  std::thread thread_ GUARDED_BY(signal_.mutex);
  bool stopped_ GUARDED_BY(signal_.mutex) = false;
};

class EtcdLease final : public Lease {
 public:
  EtcdLease(std::shared_ptr<Access> access, std::shared_ptr<Leases> leases,
            std::shared_ptr<LeaseState> state)
      : access_(std::move(access)), leases_(std::move(leases)), state_(std::move(state)) {}

  Duration time_to_live() const noexcept override { return state_->time_to_live; }
  bool alive() const noexcept override { return leases_->alive(*state_); }
  void refresh(Deadline deadline) override;
  void revoke(Deadline deadline) override { leases_->revoke(state_, access_->call(deadline)); }

  bool belongs_to(const Leases& leases) const noexcept { return leases_.get() == &leases; }
  LeaseState& state() const noexcept { return *state_; }

 private:
  std::shared_ptr<Access> access_;
  std::shared_ptr<Leases> leases_;
  std::shared_ptr<LeaseState> state_;
};

// Error(failed) that says what became of the lease.
[[noreturn]] void throw_lapsed();

}  // namespace tensorbus::store::etcd
