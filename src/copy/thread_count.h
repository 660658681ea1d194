// How many threads copy for one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace tensorbus::copy {

// The argument, else what TENSORBUS_COPY_THREADS says, else nothing. Error(invalid_argument) for a
// number that is not 1 to most_threads, and for what is no number.
std::optional<std::size_t> threads_asked_for(std::optional<std::int64_t> argument);

// The cores that this process may use, shared among the agents of its host: 1 to most_threads.
std::size_t threads_beside(std::size_t agents_here);

}  // namespace tensorbus::copy
