// How many messages this process has written and read: what a round costs in encodings.
#pragma once

#include <atomic>
#include <cstdint>

namespace tensorbus::wire {

struct Tally {
  std::atomic<std::uint64_t> written{0};
  std::atomic<std::uint64_t> read{0};
};

inline Tally tally;

}  // namespace tensorbus::wire
