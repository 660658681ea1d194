// Of many warnings that say the same, lets through the first and then one in a while.
#pragma once

#include <optional>

#include "tensorbus/deadline.h"

namespace tensorbus {

class Seldom {
 public:
  explicit Seldom(Duration interval = std::chrono::minutes(1)) : interval_(interval) {}

  bool due(TimePoint now) noexcept {
    if (last_ && now - *last_ < interval_) return false;
    last_ = now;
    return true;
  }

 private:
  Duration interval_;
  std::optional<TimePoint> last_;
};

}  // namespace tensorbus
