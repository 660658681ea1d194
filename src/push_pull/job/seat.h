// Whether nodes may spin: whether there is a core for each.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "os/process/cores.h"

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

}  // namespace tensorbus::push_pull
