// The processors that a process may run on.
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace tensorbus::os
