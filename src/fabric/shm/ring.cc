#include "fabric/shm/ring.h"

#include <algorithm>
#include <cstring>

#include "copy/prefetch.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

constexpr std::uint64_t line = 64;
// What is asked for ahead: about a message.
constexpr std::uint64_t lines_ahead = 3;

// The first word of a message: its kind, from 1, and its length. Zero: not there yet.
using First = std::atomic<std::uint64_t>;
constexpr std::uint64_t first_word(std::uint8_t kind, std::size_t bytes) {
  return (std::uint64_t{kind} + 1) << 32 | bytes;
}

// The room of a message with its first word; the next message starts on a line.
constexpr std::uint64_t room_for(std::uint64_t bytes) {
  return (sizeof(First) + bytes + line - 1) / line * line;
}

[[noreturn]] void broken(const char* what) {
  throw Error(Code::failed, std::string("the other side broke its message ring: ") + what);
}

}  // namespace

RingProducer::RingProducer(std::byte* memory, std::size_t capacity) noexcept
    : header_(*reinterpret_cast<RingHeader*>(memory)),
      data_(memory + sizeof(RingHeader)),
      capacity_(capacity) {}

bool RingProducer::push(std::uint8_t kind, std::span<const std::byte> body) {
  const std::uint64_t needed = room_for(body.size());
  // A line stays free: the line that says that there is no further message.
  if (needed + line > capacity_) {
    throw Error(Code::invalid_argument, "a message is larger than its ring");
  }
  const auto fits = [&] { return capacity_ - (written_ - taken_) >= needed + line; };
  const auto look = [&] {
    taken_ = header_.taken.load(std::memory_order_acquire);
    if (written_ - taken_ > capacity_) broken("it took what was not written");
    return fits();
  };
  if (!fits() && !look()) {
    header_.producer_waits.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!look()) return false;
  }
  const std::uint64_t at = (written_ + sizeof(First)) & (capacity_ - 1);
  const std::uint64_t straight = std::min<std::uint64_t>(body.size(), capacity_ - at);
  if (straight > 0) std::memcpy(data_ + at, body.data(), straight);
  if (straight < body.size()) std::memcpy(data_, body.data() + straight, body.size() - straight);
  const auto first_at = [this](std::uint64_t place) -> First& {
    return *reinterpret_cast<First*>(data_ + (place & (capacity_ - 1)));
  };
  first_at(written_ + needed).store(0, std::memory_order_relaxed);
  first_at(written_).store(first_word(kind, body.size()), std::memory_order_release);
  written_ += needed;
  // The consumer had the next lines a round ago: the lines come over while nobody waits for them.
  for (std::uint64_t i = 1; i <= lines_ahead; ++i) {
    prefetch_to_write(data_ + ((written_ + i * line) & (capacity_ - 1)));
  }
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

bool RingConsumer::pop(RingMessage& message) {
  const std::uint64_t word = first();
  if (word == 0) return false;
  const std::uint64_t bytes = word & UINT32_MAX;
  const std::uint64_t kind = (word >> 32) - 1;
  const std::uint64_t needed = room_for(bytes);
  if (needed + line > capacity_ || kind > UINT8_MAX) broken("a message that cannot be");
  for (std::uint64_t next = line; next < needed && next < 4 * line; next += line) {
    prefetch_to_read(data_ + ((taken_ + next) & (capacity_ - 1)));
  }
  message.kind = static_cast<std::uint8_t>(kind);
  const std::uint64_t at = (taken_ + sizeof(First)) & (capacity_ - 1);
  const std::uint64_t straight = std::min<std::uint64_t>(bytes, capacity_ - at);
  message.body.resize(bytes);
  std::memcpy(message.body.data(), data_ + at, straight);
  if (straight < bytes) std::memcpy(message.body.data() + straight, data_, bytes - straight);
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
