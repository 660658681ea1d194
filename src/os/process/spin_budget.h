// How long a wait spins before it sleeps: only as long as that pays.
#pragma once

#include <algorithm>

#include "tensorbus/deadline.h"

namespace tensorbus::os {

// What a thread does between two polls of a spin.
enum class Between {
  nothing,
  yield,  // others may have the core: whoever wants it has it for as long as it likes
};

// How long to spin: the longest time, while what a thread waits for mostly comes within that time.
// When it does not, the thread may hold the very core that the other side needs, or has let a
// stranger have its own: then the shortest time, with a try of the longest now and again, ever more
// seldom.
class SpinBudget {
 public:
  // A spin that pays earns something, one that is in vain costs something. With nothing left it
  // does not pay any more.
  struct Credit {
    int earned;
    int cost;
    int most;  // at first, too
  };
  // In vain it costs about what it saves otherwise; a core that was yielded may be away for much
  // longer.
  static constexpr Credit when_spinning{2, 1, 3};
  static constexpr Credit when_yielding{1, 32, 64};
  static constexpr int fewest_waits_between_tries = 32;
  static constexpr int most_waits_between_tries = 4096;

  // Equal times: always so long.
  SpinBudget(Duration longest, Duration shortest, Between between = Between::nothing)
      : longest_(longest),
        shortest_(shortest),
        between_(between),
        credit_(between == Between::yield ? when_yielding : when_spinning),
        left_(credit_.most) {}

  // False: one look, then sleep.
  bool spins() const noexcept { return longest_ > Duration::zero(); }
  bool yields() const noexcept { return between_ == Between::yield; }

  // The time of the spin that begins.
  Duration next() noexcept {
    tries_ = left_ > 0 || ++waits_ >= waits_between_tries_;
    if (tries_) waits_ = 0;
    return tries_ ? longest_ : shortest_;
  }
  void came() noexcept {
    left_ = std::min(left_ + credit_.earned, credit_.most);
    if (left_ == credit_.most) waits_between_tries_ = fewest_waits_between_tries / 2;
  }
  void in_vain() noexcept {
    if (!tries_) return;
    left_ = std::max(left_ - credit_.cost, 0);
    if (left_ > 0) return;
    waits_between_tries_ = std::min(waits_between_tries_ * 2, most_waits_between_tries);
  }

 private:
  Duration longest_;
  Duration shortest_;
  Between between_;
  Credit credit_;
  int left_;
  bool tries_ = false;
  int waits_ = 0;
  int waits_between_tries_ = fewest_waits_between_tries / 2;  // doubled before they are waited
};

}  // namespace tensorbus::os
