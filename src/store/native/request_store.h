// A store whose every call is one request of our protocol. How a request reaches the engine, over a
// socket or in the same process, is the subclass's business.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "os/process/fork.h"
#include "store/common/lease_times.h"
#include "store/engine/table.h"
#include "store/protocol/protocol.h"
#include "tensorbus/store.h"

namespace tensorbus::store {

// On the wire all keys start with a "/", as torch's clients send them, so that both see the same.
std::string wire_key(std::string_view key);
std::string user_key(std::string_view wire_key);

class RequestStore : public Store, public LeaseTimes {
 public:
  Capabilities capabilities() const override;
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
  std::shared_ptr<Lease> lease(Duration time_to_live, LeaseOptions options,
                               Deadline deadline) override;
  void join(Deadline deadline) override;
  std::vector<std::optional<LeaseTime>> lease_times(std::span<const std::string> keys,
                                                    Deadline deadline) override;

 protected:
  // Before any lock is taken: in a forked child one may be held for ever.
  void check_not_forked() const { os::check_not_forked(generation_, "store"); }
  bool forked() const noexcept { return os::fork_generation() != generation_; }

  // The reply's body. Throws Error; for a blocking request at its deadline, Error(timeout) whose
  // message says what is missing.
  virtual std::string call(Op op, const std::string& body, Deadline deadline,
                           Cancellation* cancellation = nullptr) = 0;

  // What a lease holds, so that it can be published again at a server that has lost it.
  struct LeaseState {
    LeaseId id = 0;
    Duration time_to_live{};
    bool keep_alive = false;
    bool alive = true;
    bool revoked = false;
    std::map<std::string, std::string> keys;  // wire keys and their values
  };
  // The requests (Op::publish) that publish every live lease and its keys.
  std::vector<std::string> lease_requests();
  // Ends keep-alive; with `revoke` the leases too. Called by close(), before calls are refused.
  void end_leases(bool revoke) noexcept;
  // After all calls have been made to fail.
  void join_keep_alive() noexcept;

  // Of what is told at most once a minute.
  const Clock* telling_clock_ = &steady_clock();

 private:
  class LeaseHandle;

  // What is set without a lease, or under another one, is no lease's any more.
  void forget_leased(std::string_view wire_key) REQUIRES(leases_mutex_);

  void keep_alive();
  // Called once per lease that is kept alive; says in the log how that went.
  void renew(const std::shared_ptr<LeaseState>& lease, Duration patience);
  void refresh(LeaseState& lease, Deadline deadline);
  void revoke(LeaseState& lease, Deadline deadline);
  // For messages: which client this is.
  std::string describe(const LeaseState& lease);

  Mutex leases_mutex_;
  std::condition_variable leases_changed_;
  // The mutex guards the map and all that the states hold, but what a lease is granted with.
  std::map<LeaseId, std::shared_ptr<LeaseState>> leases_ GUARDED_BY(leases_mutex_);
  bool leases_closed_ GUARDED_BY(leases_mutex_) = false;
  // Of the renewing thread.
  log::Seldom not_renewed_is_told_;
  bool told_ = false;
  std::thread keep_alive_thread_;
  const unsigned generation_ = os::fork_generation();
};

}  // namespace tensorbus::store
