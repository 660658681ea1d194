// When a worker is told how far its transfer is.
#pragma once

#include "tensorbus/deadline.h"

namespace tensorbus::bus {

class TellingTime {
 public:
  // Whether the worker is to be told now. Progress is for people who look: a transfer that is over
  // sooner says so at its end.
  bool has_come(TimePoint now) noexcept {
    constexpr Duration progress_every = std::chrono::milliseconds(20);
    if (now < next_) return false;
    const bool began = next_ != TimePoint::min();
    next_ = now + progress_every;
    return began;
  }

 private:
  TimePoint next_ = TimePoint::min();  // min before it began
};

}  // namespace tensorbus::bus
