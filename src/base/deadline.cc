#include "tensorbus/deadline.h"

#include <cmath>
#include <string>

#include "base/clock.h"
#include "tensorbus/status.h"

namespace tensorbus {

Deadline Deadline::after(Duration time) noexcept {
  const TimePoint start = now();
  if (time > TimePoint::max() - start) return never();
  return Deadline(start + time);
}

Deadline Deadline::after_seconds(double seconds) {
  if (std::isnan(seconds) || seconds < 0) {
    throw Error(Code::invalid_argument,
                "a timeout must be a number of seconds >= 0, not " + std::to_string(seconds));
  }
  // Beyond about 31 years the nanoseconds would overflow; nobody can tell that from never.
  if (seconds > 1e9) return never();
  return after(Duration(static_cast<std::int64_t>(std::ceil(seconds * 1e9))));
}

bool Deadline::expired() const noexcept { return !is_never() && now() >= at_; }

Duration Deadline::remaining() const noexcept {
  if (is_never()) return Duration::max();
  const Duration left = at_ - now();
  return left > Duration::zero() ? left : Duration::zero();
}

}  // namespace tensorbus
