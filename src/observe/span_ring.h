// The last spans of one thread. The owner of the ring writes without waiting for anybody; others
// read what has not been overwritten.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "observe/span.h"

namespace tensorbus::observe {

class SpanRing {
 public:
  static constexpr std::uint64_t capacity = 4096;

  SpanRing() {
    if (places_ == nullptr) throw std::bad_alloc();
  }

  // By one thread at a time.
  void push(const Span& span) noexcept {
    const std::uint64_t at = written_.load(std::memory_order_relaxed);
    const auto words = std::bit_cast<Words>(span);
    std::uint64_t* const place = place_of(at);
    begun_.store(at + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < words.size(); ++i) {
      std::atomic_ref(place[i]).store(words[i], std::memory_order_relaxed);
    }
    written_.store(at + 1, std::memory_order_release);
  }

  std::uint64_t written() const noexcept { return written_.load(std::memory_order_acquire); }

  // What was pushed after the first `seen` and is still there, oldest first; `seen` becomes all
  // that was pushed. By any thread.
  std::vector<Span> after(std::uint64_t& seen) const {
    const std::uint64_t end = written();
    std::uint64_t at = end > capacity ? std::max(seen, end - capacity) : seen;
    std::vector<Span> spans;
    for (; at < end; ++at) {
      Words words;
      std::uint64_t* const place = place_of(at);
      for (std::size_t i = 0; i < words.size(); ++i) {
        words[i] = std::atomic_ref(place[i]).load(std::memory_order_relaxed);
      }
      std::atomic_thread_fence(std::memory_order_acquire);
      // The owner of the ring has come round and writes over this place, or has.
      if (begun_.load(std::memory_order_relaxed) > at + capacity) continue;
      spans.push_back(std::bit_cast<Span>(words));
    }
    seen = end;
    return spans;
  }

 private:
  static_assert(sizeof(Span) % sizeof(std::uint64_t) == 0);
  using Words = std::array<std::uint64_t, sizeof(Span) / sizeof(std::uint64_t)>;
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };

  std::uint64_t* place_of(std::uint64_t at) const noexcept {
    return places_.get() + at % capacity * std::tuple_size_v<Words>;
  }

  // calloc: pages that were never written to are not taken from the system.
  std::unique_ptr<std::uint64_t[], Free> places_{
      static_cast<std::uint64_t*>(std::calloc(capacity, sizeof(Span)))};
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> written_{0};
};

}  // namespace tensorbus::observe
