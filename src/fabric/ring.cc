#include "fabric/ring.h"

#include <algorithm>
#include <cstring>

#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

// Length and kind, then the body; the next message starts at a multiple of 8.
struct Prefix {
  std::uint32_t bytes;
  std::uint32_t kind;
};

constexpr std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

[[noreturn]] void broken(const char* what) {
  throw Error(Code::failed, std::string("the other side broke its message ring: ") + what);
}

}  // namespace

RingProducer::RingProducer(std::byte* memory, std::size_t capacity) noexcept
    : header_(*reinterpret_cast<RingHeader*>(memory)),
      data_(memory + sizeof(RingHeader)),
      capacity_(capacity) {}

bool RingProducer::push(std::uint8_t kind, std::span<const std::byte> body) {
  const std::uint64_t needed = sizeof(Prefix) + padded(body.size());
  if (needed > capacity_) throw Error(Code::invalid_argument, "a message is larger than its ring");
  const auto room = [&] {
    const std::uint64_t used = written_ - header_.taken.load(std::memory_order_acquire);
    if (used > capacity_) broken("it took what was not written");
    return capacity_ - used;
  };
  if (room() < needed) {
    header_.producer_waits.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (room() < needed) return false;
  }
  const Prefix prefix{static_cast<std::uint32_t>(body.size()), kind};
  // Prefixes are aligned to their size, so that they never wrap.
  std::memcpy(data_ + (written_ & (capacity_ - 1)), &prefix, sizeof prefix);
  const std::uint64_t at = (written_ + sizeof prefix) & (capacity_ - 1);
  const std::uint64_t straight = std::min<std::uint64_t>(body.size(), capacity_ - at);
  if (straight > 0) std::memcpy(data_ + at, body.data(), straight);
  if (straight < body.size()) std::memcpy(data_, body.data() + straight, body.size() - straight);
  written_ += needed;
  header_.written.store(written_, std::memory_order_release);
  return true;
}

bool RingProducer::must_wake() noexcept {
  // Between publishing and looking at the flag, as sleep() has one between flag and index.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return header_.consumer_sleeps.load(std::memory_order_relaxed) != 0 &&
         header_.consumer_sleeps.exchange(0, std::memory_order_relaxed) != 0;
}

RingConsumer::RingConsumer(std::byte* memory, std::size_t capacity) noexcept
    : header_(*reinterpret_cast<RingHeader*>(memory)),
      data_(memory + sizeof(RingHeader)),
      capacity_(capacity) {}

bool RingConsumer::empty() const noexcept {
  return header_.written.load(std::memory_order_acquire) == taken_;
}

bool RingConsumer::pop(RingMessage& message) {
  const std::uint64_t filled = header_.written.load(std::memory_order_acquire) - taken_;
  if (filled == 0) return false;
  if (filled > capacity_ || filled % 8 != 0) broken("it wrote more than there is room for");
  Prefix prefix;
  std::memcpy(&prefix, data_ + (taken_ & (capacity_ - 1)), sizeof prefix);
  const std::uint64_t needed = sizeof prefix + padded(prefix.bytes);
  if (needed > filled || prefix.kind > UINT8_MAX) broken("a message has an impossible length");
  message.kind = static_cast<std::uint8_t>(prefix.kind);
  message.body.resize(prefix.bytes);
  const std::uint64_t at = (taken_ + sizeof prefix) & (capacity_ - 1);
  const std::uint64_t straight = std::min<std::uint64_t>(prefix.bytes, capacity_ - at);
  std::memcpy(message.body.data(), data_ + at, straight);
  std::memcpy(message.body.data() + straight, data_, prefix.bytes - straight);
  taken_ += needed;
  header_.taken.store(taken_, std::memory_order_release);
  return true;
}

bool RingConsumer::must_wake() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return header_.producer_waits.load(std::memory_order_relaxed) != 0 &&
         header_.producer_waits.exchange(0, std::memory_order_relaxed) != 0;
}

bool RingConsumer::sleep() noexcept {
  header_.consumer_sleeps.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (empty()) return true;
  awake();
  return false;
}

}  // namespace tensorbus::fabric
