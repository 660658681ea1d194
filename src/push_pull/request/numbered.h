// Numbers that count upwards and are never used again, and the things that these numbers name while
// the things live.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tensorbus::push_pull {

// Borrows what is named. Nothing is allocated once it has held as many numbers as it ever does.
template <typename T>
class Numbered {
 public:
  // `count` numbers in a row; the first of them.
  std::uint64_t add(T& value, std::uint64_t count = 1) {
    const std::uint64_t first = next_;
    for (std::uint64_t i = 0; i < count; ++i) {
      while (at(next_).value != nullptr) grow();
      at(next_) = {next_, &value};
      ++next_;
    }
    return first;
  }
  T* find(std::uint64_t number) const noexcept {
    const Named& named = ring_[number & (ring_.size() - 1)];
    return named.number == number ? named.value : nullptr;
  }
  void remove(std::uint64_t first, std::uint64_t count = 1) noexcept {
    for (std::uint64_t number = first; number < first + count; ++number) {
      Named& named = at(number);
      if (named.number == number) named.value = nullptr;
    }
  }
  // Whether the number was ever given.
  bool was_given(std::uint64_t number) const noexcept { return number > 0 && number < next_; }

 private:
  struct Named {
    std::uint64_t number = 0;
    T* value = nullptr;
  };

  Named& at(std::uint64_t number) noexcept { return ring_[number & (ring_.size() - 1)]; }

  void grow() {
    const std::vector<Named> smaller = std::exchange(ring_, std::vector<Named>(ring_.size() * 2));
    for (const Named& named : smaller) {
      if (named.value != nullptr) at(named.number) = named;
    }
  }

  std::vector<Named> ring_ = std::vector<Named>(64);  // a power of two
  std::uint64_t next_ = 1;
};

}  // namespace tensorbus::push_pull
