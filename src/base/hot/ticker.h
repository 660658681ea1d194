// For hot paths: time stamps at a third of what a clock costs, and how to spin.
#pragma once

#include <cstdint>
#include <span>

#ifdef __x86_64__
#include <x86intrin.h>
#endif

namespace tensorbus {

// Tells the processor that this thread looks for something again and again.
inline void relax() noexcept {
#ifdef __x86_64__
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counts cycles where the steady clock itself stands on the processor's counter: then all
// processors, and all processes of a host, read the same. Elsewhere a ticker is the steady clock.
class Ticker {
 public:
  Ticker();

  std::int64_t now() const noexcept { return cycles_ ? cycles() : steady(); }
  // now(), but not before all that the thread has read up to here has come: after a message of
  // another process this stamp is later than the one in the message.
  std::int64_t now_after_reading() const noexcept {
#ifdef __x86_64__
    if (cycles_) _mm_lfence();
#endif
    return now();
  }
  // Nanoseconds of the steady clock, to some tens. Stamps that are compared are turned together,
  // also stamps of other processes of the host.
  void to_nanoseconds(std::span<std::int64_t> stamps) const noexcept;

 private:
  struct Pair {
    std::int64_t ticks = 0;
    std::int64_t nanoseconds = 0;
  };

  static std::int64_t cycles() noexcept {
#ifdef __x86_64__
    return static_cast<std::int64_t>(__rdtsc());
#else
    return steady();
#endif
  }
  static std::int64_t steady() noexcept;
  static Pair look() noexcept;

  const bool cycles_;
  const Pair start_;
};

}  // namespace tensorbus
