// The time by which leases lapse. The lease clock stands still while the server's thread does,
// because the server is stopped or its disk hangs: the holders have renewed meanwhile, and nobody
// has read their renewals. Pure: told the time.
#pragma once

#include <utility>

#include "tensorbus/deadline.h"

namespace tensorbus::store {

class LeaseClock {
 public:
  explicit LeaseClock(TimePoint start) : looked_(start) {}

  TimePoint at(TimePoint now) const noexcept { return now - stood_; }
  // When the clock was looked at last.
  TimePoint last() const noexcept { return at(looked_); }

  // Between two looks the thread meant to sleep for `planned`, and works for a moment. What is
  // more is a stall. When the stall began is not known, so that all but the moment is given back: a
  // lease lapses late rather than early.
  void look(TimePoint now, Duration planned) noexcept {
    const Duration passed = now - std::exchange(looked_, now);
    if (passed > planned + moment) stood_ += passed - moment;
  }

 private:
  static constexpr Duration moment = std::chrono::milliseconds(100);

  TimePoint looked_;
  Duration stood_{};
};

}  // namespace tensorbus::store
