#include "store/common/call.h"

#include <algorithm>

#include "base/waiting.h"

namespace tensorbus::store::etcd {

void Signal::notify(const std::function<void()>& change) {
  const Lock lock(mutex);
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
  Lock lock(mutex);
  Waiting waiting(lock, call.deadline,
                  call.interruptible ? Waiting::CtrlC::obeyed : Waiting::CtrlC::ignored);
  while (true) {
    if (ended != nullptr) throw Error(Code::cancelled, ended);
    if (ready()) return true;
    if (!waiting.sleep(changed_)) return false;
  }
}

bool Backoff::sleep(const Call& call) {
  Signal nothing;
  nothing.wait(call.until(Deadline::after(next_)), [] { return false; });
  next_ = std::min<Duration>(next_ * 2, std::chrono::milliseconds(500));
  return !call.deadline.expired();
}

}  // namespace tensorbus::store::etcd
