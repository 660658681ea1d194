// Who polls the station. A thread that waits polls itself: between two processes that are both
// awake nothing is handed from thread to thread, allocated or asked of the kernel. When nobody
// waits a thread of our own keeps connections alive and takes what comes.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "base/mutex.h"
#include "base/waiting.h"
#include "fabric/core/fabric.h"
#include "os/io/poll.h"
#include "os/process/fork.h"
#include "os/process/spin_budget.h"
#include "tensorbus/deadline.h"
#include "tensorbus/status.h"

namespace tensorbus::push_pull {

class Loop final : public fabric::Receiver {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // Called with the lock held, by whichever thread polls.
  class Events {
   public:
    virtual ~Events() = default;
    virtual void on_up(const std::shared_ptr<fabric::Peer>& peer) = 0;
    virtual void on_message(fabric::Peer& peer, std::string_view message) = 0;
    virtual void on_lost(fabric::Peer& peer, const Status& reason) = 0;
    // After every poll, and about once a second.
    virtual void on_turn() = 0;
  };

  // `events` and `station` are borrowed.
  Loop(Events& events, fabric::Progress& station, os::SpinBudget spin);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // For everything that touches the station, or what Events keep. Error in a forked child and after
  // close().
  Lock lock() {
    if (os::fork_generation() != generation_) refuse();
    Lock lock(mutex_, std::defer_lock);
    lock_again(lock);
    return lock;
  }
  // The same for a lock that was let go for a long copy. The lock is held even if the call throws.
  // Unchecked: clang does not know that the caller's lock is one of mutex_.
  void lock_again(Lock& lock) LOCKS_UNCHECKED {
    if (!lock.try_lock()) {
      wanting_.fetch_add(1);
      lock.lock();
      wanting_.fetch_sub(1);
    }
    check();
  }
  // Polls, spins, sleeps until `done` holds: true; or false at the deadline. Error(interrupted),
  // Error(cancelled) after close(). Unchecked for the same reason.
  template <typename Done>
  bool wait(Lock& lock, Deadline deadline, Done done) LOCKS_UNCHECKED {
    if (done()) return true;
    Turn turn(*this, lock, deadline);
    while (turn.take()) {
      if (done()) return true;
    }
    return done();
  }

  // Ends every blocked call with Error(cancelled), and the thread of our own.
  void close() noexcept;

  // For the station: within poll().
  void on_message(fabric::Peer& from, std::string_view message) override REQUIRES(mutex_) {
    stirred_ = true;
    events_.on_message(from, message);
  }

 private:
  enum class Poller { nobody, caller, keeper };

  // A caller who waits.
  class Turn {
   public:
    Turn(Loop& loop, Lock& lock, Deadline deadline);
    ~Turn();
    // One poll, after a sleep if the one before was in vain for long. False at the deadline.
    bool take() REQUIRES(loop_.mutex_);

   private:
    void sleep() REQUIRES(loop_.mutex_);
    bool follow() REQUIRES(loop_.mutex_);

    Loop& loop_;
    Lock& lock_;
    const Deadline deadline_;
    std::optional<Waiting> waiting_;  // while another polls
    bool polls_ = false;
    bool slept_ = false;
    bool sleeps_next_ = false;
    bool yields_next_ = false;
    unsigned polled_ = 0;
    TimePoint now_{};
    TimePoint spin_until_{};
  };

  void poll() REQUIRES(mutex_);
  void sleep(Lock& lock, Deadline deadline, bool keeper) REQUIRES(mutex_);
  void let_others_in(Lock& lock) REQUIRES(mutex_);
  void keep();
  void check() const REQUIRES(mutex_) {
    if (closed_ || failure_) refuse();
  }
  // Unchecked: lock() calls it in a forked child, where the thread that held mutex_ is gone and it
  // must not be taken; there it throws before it reads what mutex_ guards.
  [[noreturn]] void refuse() const LOCKS_UNCHECKED;

  Events& events_;
  fabric::Progress& station_;
  os::SpinBudget spin_;
  const unsigned generation_ = os::fork_generation();

  Mutex mutex_;
  std::atomic<int> wanting_{0};  // who wait for the lock
  std::condition_variable changed_;
  int followers_ GUARDED_BY(mutex_) = 0;  // who wait while another polls
  Poller poller_ GUARDED_BY(mutex_) = Poller::nobody;
  bool poller_sleeps_ GUARDED_BY(mutex_) = false;
  bool stirred_ GUARDED_BY(mutex_) = false;     // messages came in this poll
  std::uint64_t turns_ GUARDED_BY(mutex_) = 0;  // of callers
  bool closed_ GUARDED_BY(mutex_) = false;
  std::optional<Status> failure_ GUARDED_BY(mutex_);
  os::EventFd wake_;         // for all who sleep, at the end
  os::EventFd keeper_wake_;  // a caller polls now, or has left after a sleep
  bool keeper_rests_ GUARDED_BY(mutex_) = false;
  std::thread keeper_;
};

}  // namespace tensorbus::push_pull
