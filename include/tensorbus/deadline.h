// When a call that can block has to end.
#pragma once

#include <chrono>

#pragma GCC visibility push(default)

namespace tensorbus {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// A moment on the steady clock, or never. A plain value; "for ever" is a deadline too.
class Deadline {
 public:
  explicit Deadline(TimePoint at) noexcept : at_(at) {}

  static Deadline never() noexcept { return Deadline(TimePoint::max()); }
  // Counted from now. A time too long to represent means never; a negative one is in the past.
  static Deadline after(Duration time) noexcept;
  // From user input: throws Error(invalid_argument) for a negative time or NaN; infinity is never.
  static Deadline after_seconds(double seconds);

  TimePoint at() const noexcept { return at_; }
  bool is_never() const noexcept { return at_ == TimePoint::max(); }
  bool expired() const noexcept;
  // Zero when expired, Duration::max() when never.
  Duration remaining() const noexcept;

  // The earlier of two.
  friend Deadline sooner(Deadline a, Deadline b) noexcept { return a.at_ < b.at_ ? a : b; }
  friend bool operator==(Deadline, Deadline) = default;

 private:
  TimePoint at_;
};

}  // namespace tensorbus

#pragma GCC visibility pop
