// Numbers that many threads count and one thread reads. Relaxed: counters order nothing.
#pragma once

#include <atomic>
#include <cstdint>

namespace tensorbus::observe {

class Counter {
 public:
  void add(std::uint64_t amount = 1) noexcept {
    value_.fetch_add(amount, std::memory_order_relaxed);
  }
  void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace tensorbus::observe
