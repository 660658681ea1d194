// How a caller waits for work that another thread does for it.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>

#include "base/mutex.h"
#include "tensorbus/deadline.h"
#include "tensorbus/store.h"

namespace tensorbus::store::etcd {

// What can end a blocked call before its answer comes. Copied down the call stack.
struct Call {
  Deadline deadline;
  Cancellation* closing_store = nullptr;
  Cancellation* cancellation = nullptr;
  Cancellation* closing_watch = nullptr;
  bool interruptible = true;  // by Ctrl-C; not for threads of our own

  Call until(Deadline other) const {
    Call shorter = *this;
    shorter.deadline = sooner(deadline, other);
    return shorter;
  }
};

// A mutex and the news that what it guards has changed.
class Signal {
 public:
  // `change` runs under the mutex; waiters then look again.
  void notify(const std::function<void()>& change);
  // Until `ready`, which is asked under the mutex: true. False at the deadline. Throws
  // Error(cancelled) and Error(interrupted).
  bool wait(const Call& call, const std::function<bool()>& ready);

  Mutex mutex;

 private:
  std::condition_variable changed_;
};

// Sleeps before a reconnect, longer each time; ends early as any blocked call does.
class Backoff {
 public:
  // False when the call's deadline came first.
  bool sleep(const Call& call);

 private:
  Duration next_ = std::chrono::milliseconds(10);
};

}  // namespace tensorbus::store::etcd
