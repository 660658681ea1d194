// How much matching the calling thread has done, counted for tests. Each takes all ranks, or ranks
// x tensors: done again at every change of another rank, it is what makes registration explode with
// the ranks.
#pragma once

#include <cstdint>

namespace tensorbus::bus {

struct MatchingWork {
  std::uint64_t sides = 0;       // what all ranks of a side say of its tensors, put together
  std::uint64_t passages = 0;    // plans of all tensors for a reader
  std::uint64_t roll_calls = 0;  // all senders of a generation, sought among the registrations
};

inline MatchingWork& matching_work() noexcept {
  thread_local MatchingWork work;
  return work;
}

}  // namespace tensorbus::bus
