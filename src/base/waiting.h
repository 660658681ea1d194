// Waiting on a condition variable with a deadline and Ctrl-C.
//
// Asking for Ctrl-C takes the interpreter's lock, and the thread that has that lock may be waiting
// for the mutex of the wait. So the mutex is never held while the question is asked, and the
// question is asked here and nowhere else.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/mutex.h"
#include "tensorbus/deadline.h"

namespace tensorbus {

// Lets go of a lock for as long as the Unlocked lives.
class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

// throw_if_interrupted() for the holder of a lock: the lock is held again afterwards, also after an
// Error.
void throw_if_interrupted(std::unique_lock<std::mutex>& lock);

// One caller's wait, for loops that do more than sleep; the others call wait() below.
class Waiting {
 public:
  enum class CtrlC { obeyed, ignored };

  // The lock is borrowed. Without Ctrl-C: for calls that must not be given up half-way.
  Waiting(std::unique_lock<std::mutex>& lock, Deadline deadline, CtrlC ctrl_c = CtrlC::obeyed);

  // Sleeps until `changed` is notified, the deadline or `at_latest` passes, or for no reason.
  // False, without a sleep, if the deadline has passed. Throws Error(interrupted). However the call
  // ends, the lock is held.
  bool sleep(std::condition_variable& changed, Deadline at_latest = Deadline::never());

 private:
  std::unique_lock<std::mutex>& lock_;
  const Deadline deadline_;
  const CtrlC ctrl_c_;
  Deadline ask_at_;
};

// Sleeps until `done`, which is asked under the lock and may throw to end the wait: true. False at
// the deadline. Throws Error(interrupted). The caller's mutex has no name here for clang to follow.
template <typename Done>
bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Deadline deadline,
          Done done) LOCKS_UNCHECKED {
  Waiting waiting(lock, deadline);
  while (!done()) {
    if (!waiting.sleep(changed)) return false;
  }
  return true;
}

}  // namespace tensorbus
