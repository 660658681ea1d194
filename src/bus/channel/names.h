// What pairs, sides, batches and tensors may be called.
#pragma once

#include <cstddef>

#include "bus/channel/command.h"

namespace tensorbus::bus {

// In bytes of UTF-8. Names are part of the records that every agent reads.
inline constexpr std::size_t longest_name = 1024;

// Error(invalid_argument) that says which name is empty or too long; tensors need no name. Clients
// ask before they wait for anything, agents because they believe nobody.
void check_names(const InitPair& pair);
void check_names(const RegisterBatch& batch);

}  // namespace tensorbus::bus
