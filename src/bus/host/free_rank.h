// Ranks for agents that were given none.
#pragma once

#include <string>

#include "bus/channel/command.h"
#include "tensorbus/deadline.h"
#include "tensorbus/layout.h"
#include "tensorbus/store.h"

namespace tensorbus::bus {

// Ranks that nobody gave count from here, out of the way of those that users give.
inline constexpr Rank first_free_rank = 1000;

// A rank that no agent of the namespace has or had, unless a user gives it by hand.
Rank free_rank(Store& store, const std::string& space, Deadline deadline);

// Error(invalid_argument) if the order of ranks decides what each of them holds: the order of ranks
// that the store gave is that of their coming.
void check_order_does_not_matter(const InitPair& pair);

}  // namespace tensorbus::bus
