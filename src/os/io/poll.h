// Sleeping until a descriptor is ready, a deadline passes or Ctrl-C is pressed.
#pragma once

#include <poll.h>

#include <span>

#include "os/io/fd.h"
#include "tensorbus/deadline.h"

namespace tensorbus::os {

// True if a descriptor is ready, false at the deadline (never early). Throws Error(interrupted).
bool wait_ready(std::span<pollfd> descriptors, Deadline deadline);

// One sleep of wait_ready(): may also return false early, when an interrupt check is due.
bool sleep_ready(std::span<pollfd> descriptors, Deadline deadline);

// A counter that wakes a poll from any thread.
class EventFd {
 public:
  EventFd();
  int get() const noexcept { return fd_.get(); }
  void signal() noexcept;
  // Back to not ready.
  void drain() noexcept;

 private:
  Fd fd_;
};

// Whether a descriptor from elsewhere is an eventfd: writing to one cannot block for long or raise
// a signal, writing to anything else could. Makes the eventfd non-blocking.
bool is_eventfd(const Fd& fd);

}  // namespace tensorbus::os
