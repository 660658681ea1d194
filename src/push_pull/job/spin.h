// How long a wait spins before it sleeps: only as long as that pays.
#pragma once

#include <algorithm>

#include "tensorbus/deadline.h"

namespace tensorbus::push_pull {

// The longest time, while what is waited for mostly comes within it. When it does not, it may be
// that we hold the very core that it needs: then the shortest, with a try now and again.
class SpinBudget {
 public:
  static constexpr int failures_in_a_row = 3;
  static constexpr int waits_between_tries = 32;

  // Equal: always so long.
  SpinBudget(Duration longest, Duration shortest) : longest_(longest), shortest_(shortest) {}

  // Of the spin that begins.
  Duration next() noexcept {
    tries_ = failures_ < failures_in_a_row || ++waits_ % waits_between_tries == 0;
    return tries_ ? longest_ : shortest_;
  }
  void came() noexcept { failures_ = 0; }
  void in_vain() noexcept {
    if (tries_) failures_ = std::min(failures_ + 1, failures_in_a_row);
  }

 private:
  Duration longest_;
  Duration shortest_;
  bool tries_ = false;
  int failures_ = 0;
  unsigned waits_ = 0;
};

}  // namespace tensorbus::push_pull
