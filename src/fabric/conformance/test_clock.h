// A clock for tests of what happens after a long time.
#pragma once

#include "base/clock.h"

namespace tensorbus::fabric {

// Moves only when told.
class TestClock final : public Clock {
 public:
  TimePoint now() const noexcept override { return now_; }
  void advance(Duration time) { now_ += time; }

 private:
  TimePoint now_ = tensorbus::now();
};

}  // namespace tensorbus::fabric
