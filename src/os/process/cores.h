// The cores that this process may use.
#pragma once

#include <cstddef>
#include <istream>
#include <string>

namespace tensorbus::os {

// What affinity and control groups leave of the machine's, as far as one can see; at least 1.
std::size_t usable_cores();

// What control groups alone leave, both versions, rounded up; SIZE_MAX without a limit.
// `membership` is what /proc/self/cgroup says, `root` where groups are mounted.
std::size_t cores_in_groups(std::istream& membership, const std::string& root);

}  // namespace tensorbus::os
