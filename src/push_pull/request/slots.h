// Free slots by size. A slot is any struct with `bytes`.
#pragma once

#include <bit>
#include <cstddef>
#include <optional>
#include <vector>

namespace tensorbus::push_pull {

inline constexpr std::size_t smallest_slot = 256;

// What a slot for so many bytes is made of: four sizes per doubling, so that tensors of nearly one
// size share slots.
constexpr std::size_t slot_size(std::size_t bytes) {
  if (bytes <= smallest_slot) return smallest_slot;
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) & ~(step - 1);
}

// Nothing is allocated once as many slots were free at a time as ever are.
template <typename Slot>
class FreeSlots {
 public:
  // Of exactly slot_size(bytes).
  std::optional<Slot> take(std::size_t bytes) {
    const std::size_t index = index_of(slot_size(bytes));
    if (index >= by_size_.size() || by_size_[index].empty()) return std::nullopt;
    Slot slot = std::move(by_size_[index].back());
    by_size_[index].pop_back();
    idle_bytes_ -= slot.bytes;
    return slot;
  }
  void put(Slot slot) {
    const std::size_t index = index_of(slot.bytes);
    if (index >= by_size_.size()) by_size_.resize(index + 1);
    idle_bytes_ += slot.bytes;
    by_size_[index].push_back(std::move(slot));
  }
  std::size_t idle_bytes() const noexcept { return idle_bytes_; }

 private:
  static std::size_t index_of(std::size_t size) {
    const auto doubling = static_cast<std::size_t>(std::bit_width(size - 1));
    return doubling * 4 + ((size - 1) >> (doubling - 3)) % 4;
  }

  std::vector<std::vector<Slot>> by_size_;
  std::size_t idle_bytes_ = 0;
};

}  // namespace tensorbus::push_pull
