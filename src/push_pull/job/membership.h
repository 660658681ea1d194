// Who belongs to a job, as its scheduler's store says: finding each other, barriers, leaving.
#pragma once

#include <atomic>
#include <compare>
#include <condition_variable>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "tensorbus/push_pull.h"
#include "tensorbus/store.h"

namespace tensorbus::push_pull {

struct Member {
  Role role{};
  int rank = 0;
  friend auto operator<=>(const Member&, const Member&) = default;
};
// "worker 3".
std::string to_string(const Member& member);

// Error(invalid_argument) for a job, or a rank in it, that cannot be.
void check(const Job& job);
void check(const Job& job, const Member& member);

// Blocking calls end at their deadline, on Ctrl-C, and when the scheduler is gone. Thread safe.
class Membership {
 public:
  // Finds the scheduler. Error(unreachable) at the deadline, Error(invalid_argument) if it was told
  // of another job.
  Membership(const Member& self, const NodeOptions& options);
  // Leaves without waiting for anybody: to the others this node is lost.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Connections of the job prove this.
  const std::string& secret() const noexcept { return secret_; }
  const Member& self() const noexcept { return self_; }
  std::vector<Member> everybody() const;

  // Takes this node's rank, under a record that others can read. Error(invalid_argument) if the
  // rank is taken.
  void join(const std::string& record, Deadline deadline);
  // Error(timeout) that says who is missing, also when it is another node that waits no longer;
  // Error(peer_lost) who is gone.
  void wait_for_all(Deadline deadline);
  std::string record(const Member& member) const;
  // The member that was lost first, if any was.
  std::optional<Status> lost() const;

  // A second value of each member, for those that have one.
  void publish_address(const std::string& address, Deadline deadline);
  std::string address(const Member& member, Deadline deadline);

  // The members that take part call barrier(). Error(timeout) that says who came, Error(peer_lost).
  void barrier(const Party& party, Deadline deadline);

  // Tells the others and waits until all have left or are lost. Error(timeout) that says who has
  // not. The scheduler ends the job first, and afterwards waits until nobody needs its store.
  void leave(Deadline deadline);

 private:
  struct Barrier {
    std::set<Member> members;
    Cancellation cancellation;
    std::optional<Member> lost;
  };

  void find_job(const NodeOptions& options);
  void say_that_we_give_up(const std::string& why);
  void say_goodbye(Deadline deadline);
  bool scheduler_is_lost() const;
  void claim(const std::string& record, Deadline deadline);
  // False at the deadline.
  template <typename Done>
  bool wait(Lock& lock, Deadline deadline, Done done) REQUIRES(mutex_);
  void follow_changes();
  void take(const StoreEvent& event);
  void begin_of_another_job();
  void lose(const Member& member) REQUIRES(mutex_);
  void lose_scheduler(const std::string& why);
  void close() noexcept;
  std::string key(const char* what, const Member& member) const;
  std::vector<Member> missing(const std::map<Member, std::string>& from) const;
  std::set<Member> members_of(const Party& party) const;

  const Member self_;
  const Job job_;
  std::unique_ptr<Store> store_;
  std::string prefix_;
  std::string secret_;
  std::shared_ptr<Lease> lease_;
  std::unique_ptr<Watch> watch_;

  std::atomic<bool> closed_{false};
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::map<Member, std::string> records_ GUARDED_BY(mutex_);
  std::map<Member, std::string> addresses_ GUARDED_BY(mutex_);
  std::set<Member> left_ GUARDED_BY(mutex_);
  std::set<Member> lost_ GUARDED_BY(mutex_);
  std::optional<Member> first_lost_ GUARDED_BY(mutex_);
  std::optional<Status> another_gave_up_ GUARDED_BY(mutex_);
  std::optional<Status> scheduler_lost_ GUARDED_BY(mutex_);
  std::set<Barrier*> barriers_ GUARDED_BY(mutex_);
  bool leaving_ GUARDED_BY(mutex_) = false;
  bool job_is_over_ GUARDED_BY(mutex_) = false;
  std::thread follower_;
};

// What the scheduler publishes when its store serves: the shape of the job, and a new secret.
void publish_job(Store& store, const Job& job, Deadline deadline);
void withdraw_job(Store& store, Deadline deadline);

}  // namespace tensorbus::push_pull
