// The only place that reads a clock. What needs time is given a Clock, so that time can be
// simulated.
#pragma once

#include <cstdint>

#include "tensorbus/deadline.h"

namespace tensorbus {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const noexcept = 0;
};

// The steady clock of this machine.
TimePoint now() noexcept;
const Clock& steady_clock() noexcept;

// Wall-clock nanoseconds since 1970, for people and files; never for deadlines.
std::int64_t wall_clock_ns() noexcept;

}  // namespace tensorbus
