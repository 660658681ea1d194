#include "base/hot/ticker.h"

#include <fstream>
#include <string>

#include "base/clock.h"

namespace tensorbus {
namespace {

// The kernel has checked that the counters of all processors agree, or it would not use them.
bool clock_counts_cycles() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return file >> name && name == "tsc";
}

}  // namespace

Ticker::Ticker() : cycles_(clock_counts_cycles()), start_(look()) {}

std::int64_t Ticker::steady() noexcept { return tensorbus::now().time_since_epoch().count(); }

// Ticks and clock at one moment: the closest of a few tries, since a try may be interrupted.
Ticker::Pair Ticker::look() noexcept {
  Pair best;
  std::int64_t closest = INT64_MAX;
  for (int i = 0; i < 5; ++i) {
    const std::int64_t before = cycles();
    const std::int64_t nanoseconds = steady();
    const std::int64_t after = cycles();
    if (after - before >= closest) continue;
    closest = after - before;
    best = {before + closest / 2, nanoseconds};
  }
  return best;
}

void Ticker::to_nanoseconds(std::span<std::int64_t> stamps) const noexcept {
  if (!cycles_) return;
  const Pair end = look();
  const double rate = static_cast<double>(end.nanoseconds - start_.nanoseconds) /
                      static_cast<double>(end.ticks - start_.ticks);
  for (std::int64_t& stamp : stamps) {
    stamp =
        end.nanoseconds - static_cast<std::int64_t>(static_cast<double>(end.ticks - stamp) * rate);
  }
}

}  // namespace tensorbus
