// How long a wait spins before it sleeps: only as long as that pays.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "os/process/cores.h"
#include "tensorbus/deadline.h"

namespace tensorbus::push_pull {

// Where a node runs.
struct Seat {
  std::string machine;
  os::Cores cores;
};

// Whether each of `nodes` that may run on a core of `own` can have one to itself. `own` is among
// `nodes`.
inline bool has_cores_for(const Seat& own, std::span<const Seat> nodes) {
  const auto rivals = std::ranges::count_if(nodes, [&own](const Seat& node) {
    return node.machine == own.machine && node.cores.overlaps(own.cores);
  });
  return static_cast<std::size_t>(rivals) <= own.cores.count();
}

// How long to spin: the longest time, while what a thread waits for mostly comes within that time.
// When it does not, the thread may hold the very core that the other side needs: then the shortest
// time, with a try of the longest now and again.
class SpinBudget {
 public:
  static constexpr int failures_in_a_row = 3;
  static constexpr int waits_between_tries = 32;

  // Equal: always so long.
  SpinBudget(Duration longest, Duration shortest) : longest_(longest), shortest_(shortest) {}

  // False: one look, then sleep.
  bool spins() const noexcept { return longest_ > Duration::zero(); }

  // The time of the spin that begins.
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
