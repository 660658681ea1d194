// Numbers that count upwards and are never used again, and what they name while it lives.
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
    const Entry& entry = ring_[number & (ring_.size() - 1)];
    return entry.number == number ? entry.value : nullptr;
  }
  void remove(std::uint64_t first, std::uint64_t count = 1) noexcept {
    for (std::uint64_t number = first; number < first + count; ++number) {
      Entry& entry = at(number);
      if (entry.number == number) entry.value = nullptr;
    }
  }
  // Whether it was ever given.
  bool was_given(std::uint64_t number) const noexcept { return number > 0 && number < next_; }

 private:
  struct Entry {
    std::uint64_t number = 0;
    T* value = nullptr;
  };

  Entry& at(std::uint64_t number) noexcept { return ring_[number & (ring_.size() - 1)]; }

  void grow() {
    const std::vector<Entry> smaller = std::exchange(ring_, std::vector<Entry>(ring_.size() * 2));
    for (const Entry& entry : smaller) {
      if (entry.value != nullptr) at(entry.number) = entry;
    }
  }

  std::vector<Entry> ring_ = std::vector<Entry>(64);  // a power of two
  std::uint64_t next_ = 1;
};

}  // namespace tensorbus::push_pull
