#include "base/waiting.h"

#include "base/interrupt.h"

namespace tensorbus {

void throw_if_interrupted(std::unique_lock<std::mutex>& lock) {
  const Unlocked unlocked(lock);
  throw_if_interrupted();
}

Waiting::Waiting(std::unique_lock<std::mutex>& lock, Deadline deadline, CtrlC ctrl_c)
    : lock_(lock),
      deadline_(deadline),
      ctrl_c_(ctrl_c),
      ask_at_(ctrl_c == CtrlC::obeyed ? Deadline::after(longest_sleep()) : Deadline::never()) {}

bool Waiting::sleep(std::condition_variable& changed, Deadline at_latest) {
  if (deadline_.expired()) return false;
  const Deadline ask_at = sooner(deadline_, ask_at_);
  const Deadline until = sooner(ask_at, at_latest);
  // wait_until() cannot add to TimePoint::max().
  if (until.is_never()) {
    changed.wait(lock_);
  } else {
    changed.wait_until(lock_, until.at());
  }
  // Not after every notification: the caller has its result sooner if it does not queue for the
  // interpreter.
  if (ctrl_c_ == CtrlC::obeyed && ask_at.expired()) {
    throw_if_interrupted(lock_);
    ask_at_ = Deadline::after(longest_sleep());
  }
  return true;
}

}  // namespace tensorbus
