#include "base/clock.h"

#include <chrono>

namespace tensorbus {
namespace {

class SteadyClock final : public Clock {
 public:
  TimePoint now() const noexcept override { return tensorbus::now(); }
};

}  // namespace

TimePoint now() noexcept {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}

const Clock& steady_clock() noexcept {
  static const SteadyClock clock;
  return clock;
}

std::int64_t wall_clock_ns() noexcept {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace tensorbus
