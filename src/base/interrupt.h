// How a blocked call learns that its user pressed Ctrl-C, without this library knowing Python.
#pragma once

#include "tensorbus/deadline.h"

namespace tensorbus {

// Returns true when the calling thread should give up. The Python bindings install a check that
// asks the interpreter; without a check nothing is ever interrupted.
using InterruptCheck = bool (*)();
void set_interrupt_check(InterruptCheck check) noexcept;

// A check of one thread, which throws to end what blocks there: os/process/interruptible.h.
class ThreadCheck {
 public:
  virtual ~ThreadCheck() = default;
  virtual void throw_if_ended() = 0;
};
// Sets the check of the calling thread; null: none. Returns the check before.
ThreadCheck* exchange_thread_check(ThreadCheck* check) noexcept;

// Throws Error(interrupted), or what the thread's own check throws. Every blocking loop asks when
// it wakes.
void throw_if_interrupted();

// How long one sleep may last before the check is asked again: a signal can arrive at another
// thread or just before the sleep, and then no system call of ours returns EINTR.
Duration longest_sleep() noexcept;

}  // namespace tensorbus
