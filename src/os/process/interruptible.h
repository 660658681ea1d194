// Ending what one thread waits for, as if Ctrl-C were pressed for that thread alone.
#pragma once

#include <atomic>

#include "base/interrupt.h"

namespace tensorbus::os {

// Any thread may interrupt.
class Interruption {
 public:
  // `why` lives for ever.
  void interrupt(const char* why) noexcept { why_.store(why); }
  void take_back() noexcept { why_.store(nullptr); }
  bool asked() const noexcept { return why() != nullptr; }
  const char* why() const noexcept { return why_.load(); }

 private:
  std::atomic<const char*> why_{nullptr};
};

// While the object lives on a thread, blocking calls of that thread obey an interruption, which is
// borrowed: one call throws Error(cancelled), and calls that clean up afterwards can wait again.
class Interruptible final : private ThreadCheck {
 public:
  explicit Interruptible(const Interruption& by) noexcept
      : by_(by), outer_(exchange_thread_check(this)) {}
  ~Interruptible() override { exchange_thread_check(outer_); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  void throw_if_ended() override;

  const Interruption& by_;
  bool told_ = false;
  ThreadCheck* const outer_;
};

}  // namespace tensorbus::os
