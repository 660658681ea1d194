// The words that both sides of one host see and swap.
#pragma once

#include <atomic>
#include <cstdint>

namespace tensorbus::push_pull {

// Each on a line of its own.
inline constexpr std::size_t word_bytes = 64;

// Of a request, at its worker: whoever leaves `pending` decides whether the pull tensors are
// written. The request's number is part of the word: a server that slept cannot take a later
// request in the same place for the one that it knows.
enum class RequestState : std::uint64_t {
  pending,
  writing,    // server
  written,    // server
  cancelled,  // worker
};
constexpr std::uint64_t word_of(std::uint64_t number, RequestState state) {
  return number << 2 | static_cast<std::uint64_t>(state);
}
inline bool swap(std::atomic<std::uint64_t>& word, std::uint64_t number, RequestState from,
                 RequestState to) {
  std::uint64_t expected = word_of(number, from);
  return word.compare_exchange_strong(expected, word_of(number, to), std::memory_order_acq_rel);
}

// Of a registered buffer's chunk, at its server: whose bytes are in it.
enum class LandingState : std::uint64_t {
  free,
  pushed,     // by a worker, straight
  delivered,  // by the server, out of a slot
};
inline bool take(std::atomic<std::uint64_t>& word, LandingState to) {
  auto expected = static_cast<std::uint64_t>(LandingState::free);
  return word.compare_exchange_strong(expected, static_cast<std::uint64_t>(to),
                                      std::memory_order_acq_rel);
}
inline void give_back(std::atomic<std::uint64_t>& word) {
  word.store(static_cast<std::uint64_t>(LandingState::free), std::memory_order_release);
}

}  // namespace tensorbus::push_pull
