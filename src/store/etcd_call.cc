#include "store/etcd_call.h"

#include <algorithm>

#include "base/interrupt.h"

namespace tensorbus::store::etcd {

void Signal::notify(const std::function<void()>& change) {
  const std::lock_guard lock(mutex);
  change();
  changed_.notify_all();
}

bool Signal::wait(const Call& call, const std::function<bool()>& ready) {
  const char* ended = nullptr;
  const auto end_with = [&](const char* reason) {
    return [this, &ended, reason] { notify([&] { ended = reason; }); };
  };
  // Hooks take the mutex when they fire, so they are made and destroyed without it.
  const Cancellation::Hook store_hook(call.closing_store, end_with("the store was closed"));
  const Cancellation::Hook watch_hook(call.closing_watch, end_with("the watch was closed"));
  const Cancellation::Hook caller_hook(call.cancellation, end_with("cancelled by the caller"));
  while (true) {
    // Without the mutex: the check may wait for a lock of the interpreter, whose owner may be
    // waiting for this mutex in cancel().
    if (call.interruptible) throw_if_interrupted();
    std::unique_lock lock(mutex);
    if (ended != nullptr) throw Error(Code::cancelled, ended);
    if (ready()) return true;
    const Duration left = call.deadline.remaining();
    if (left == Duration::zero()) return false;
    const Duration sleep = call.interruptible ? std::min(left, longest_sleep()) : left;
    const auto woken = [&] { return ended != nullptr || ready(); };
    if (sleep == Duration::max()) {
      changed_.wait(lock, woken);
    } else {
      changed_.wait_until(lock, Deadline::after(sleep).at(), woken);
    }
  }
}

bool Backoff::sleep(const Call& call) {
  Signal nothing;
  nothing.wait(call.until(Deadline::after(next_)), [] { return false; });
  next_ = std::min<Duration>(next_ * 2, std::chrono::milliseconds(500));
  return !call.deadline.expired();
}

}  // namespace tensorbus::store::etcd
