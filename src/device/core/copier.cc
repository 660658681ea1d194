#include "device/core/copier.h"

#include <algorithm>
#include <bit>
#include <new>
#include <vector>

namespace tensorbus::device {
namespace {

constexpr std::size_t smallest_scratch = std::size_t{64} << 10;
// More than that goes back to the system, and is pinned anew when it is wanted.
constexpr std::size_t most_kept = std::size_t{64} << 20;
constexpr std::align_val_t page{4096};

std::shared_ptr<std::byte> allocate_pages(std::size_t bytes) {
  return {static_cast<std::byte*>(::operator new(bytes, page)),
          [](std::byte* memory) { ::operator delete(memory, page); }};
}

}  // namespace

// Scratch that nobody uses now, by its size, which is a power of two.
class Copier::Shelf {
 public:
  struct Piece {
    std::shared_ptr<std::byte> memory;
    std::shared_ptr<const Pin> pin;
  };

  std::shared_ptr<Piece> take(std::size_t bytes) {
    const Lock lock(mutex_);
    const auto found = pieces_.find(bytes);
    if (found == pieces_.end()) return nullptr;
    std::shared_ptr<Piece> piece = std::move(found->second);
    pieces_.erase(found);
    kept_ -= bytes;
    return piece;
  }
  void give_back(std::size_t bytes, std::shared_ptr<Piece> piece) {
    const Lock lock(mutex_);
    if (kept_ + bytes > most_kept) return;
    pieces_.emplace(bytes, std::move(piece));
    kept_ += bytes;
  }

 private:
  Mutex mutex_;
  std::multimap<std::size_t, std::shared_ptr<Piece>> pieces_ GUARDED_BY(mutex_);
  std::size_t kept_ GUARDED_BY(mutex_) = 0;
};

Copier::Copier(Device& device)
    : device_(device), queue_(device.open_queue()), shelf_(std::make_shared<Shelf>()) {}

std::shared_ptr<std::byte> Copier::scratch(std::size_t wanted) {
  const std::size_t bytes = std::bit_ceil(std::max(wanted, smallest_scratch));
  std::shared_ptr<Shelf::Piece> piece = shelf_->take(bytes);
  if (piece == nullptr) {
    piece = std::make_shared<Shelf::Piece>();
    piece->memory = allocate_pages(bytes);
    piece->pin = device_.pin({.bytes = {piece->memory.get(), bytes}, .keeper = piece->memory});
  }
  std::byte* const first = piece->memory.get();
  return {first, [shelf = shelf_, bytes, piece = std::move(piece)](std::byte*) mutable {
            shelf->give_back(bytes, std::move(piece));
          }};
}

Copier& Copiers::of(Id id) {
  const Lock lock(mutex_);
  std::unique_ptr<Copier>& copier = copiers_[id];
  if (copier == nullptr) {
    auto made = std::make_unique<Copier>(open_(id));
    if (opened_) opened_(made->queue().fd());
    copier = std::move(made);
  }
  return *copier;
}

}  // namespace tensorbus::device
