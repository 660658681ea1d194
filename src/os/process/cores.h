// The cores that a process may run on, and how much of these the process may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace tensorbus::os {

// A bit for each processor, the first in the lowest bit of the first word.
struct Cores {
  std::vector<std::uint64_t> words;

  std::size_t count() const noexcept;
  bool overlaps(const Cores& other) const noexcept;
};

// Of the calling thread, and of the threads that it starts.
Cores own_cores();

// What affinity and control groups leave of the machine's, as far as one can see; at least 1.
std::size_t usable_cores();

// What control groups alone leave, both versions, rounded up; SIZE_MAX without a limit.
// `membership` is what /proc/self/cgroup says, `root` where groups are mounted.
std::size_t cores_in_groups(std::istream& membership, const std::string& root);

}  // namespace tensorbus::os
