// Waiting awake for what comes soon. To wake a thread that sleeps takes longer than a small round
// needs for everything else; between two looks the core is handed to whoever wants it.
#pragma once

#include <sched.h>

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "os/process/spin_budget.h"

namespace tensorbus::os {

// Of one thread.
class Awake {
 public:
  // For longer than the other side of a small round needs, shorter than anybody would notice.
  static constexpr Duration longest = std::chrono::microseconds(200);
  // A core that comes back later was had by somebody who computes: a sleeper would have got it
  // sooner.
  static constexpr Duration late = std::chrono::microseconds(500);

  // Looks until `look` is true: true. False: sleep now.
  template <typename Look>
  bool until(Look look) {
    if (budget_.next() == Duration::zero()) return false;
    TimePoint before = now();
    for (const TimePoint end = before + longest; before < end;) {
      ::sched_yield();
      const bool came = look();
      const TimePoint back = std::exchange(before, now());
      if (before - back > late) {
        budget_.in_vain();
        return came;
      }
      if (came) {
        budget_.came();
        return true;
      }
    }
    return false;
  }

 private:
  SpinBudget budget_{longest, Duration::zero(), Between::yield};
};

}  // namespace tensorbus::os
