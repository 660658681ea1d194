// Messages from one process to another through shared memory: one producer, one consumer.
//
// A message starts on a cache line with a word that says that the message is there, and how long it
// is: one line that goes from core to core brings a short message together with the news of it.
//
// Each end keeps its own index, so whatever the other process writes into the memory, indices stay
// inside the ring; a message is copied out before anybody looks at its bytes. What cannot be (an
// index from nowhere, a length that does not fit) is Error(failed), for good.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tensorbus::fabric {

// What both ends see; all zero is empty. The flags, which the other side looks at with every
// message, are hardly ever written, so they have lines of their own.
struct RingHeader {
  alignas(64) std::atomic<std::uint64_t> taken;           // bytes, by the consumer
  alignas(64) std::atomic<std::uint32_t> producer_waits;  // for room
  alignas(64) std::atomic<std::uint32_t> consumer_sleeps;
};

// Memory of a ring with room for `capacity` bytes, a power of two.
constexpr std::size_t ring_bytes(std::size_t capacity) { return sizeof(RingHeader) + capacity; }

class RingProducer {
 public:
  // The memory is borrowed, 64-byte aligned and new.
  RingProducer(std::byte* memory, std::size_t capacity) noexcept;

  // False if there is no room; then the consumer is asked to say when there is.
  bool push(std::uint8_t kind, std::span<const std::byte> body);
  // After push(): whether the consumer sleeps and must be woken. Says so once.
  bool must_wake() noexcept;

 private:
  RingHeader& header_;
  std::byte* data_;
  std::uint64_t capacity_;
  std::uint64_t written_ = 0;
  std::uint64_t taken_ = 0;  // when last looked at: there is at least that much room
};

struct RingMessage {
  std::uint8_t kind = 0;
  std::string body;
};

class RingConsumer {
 public:
  RingConsumer(std::byte* memory, std::size_t capacity) noexcept;

  bool empty() const noexcept { return first() == 0; }
  // False if there is no message. The memory of `message` is used again.
  bool pop(RingMessage& message);
  // After pop(): whether the producer waits for room and must be woken. Says so once.
  bool must_wake() noexcept;
  // Before sleeping: false if there is something to take, and then the consumer is not asleep.
  bool sleep() noexcept;
  void awake() noexcept { header_.consumer_sleeps.store(0, std::memory_order_relaxed); }

 private:
  // The first word of the next message, 0 before it is there.
  std::uint64_t first() const noexcept {
    return reinterpret_cast<const std::atomic<std::uint64_t>*>(data_ + (taken_ & (capacity_ - 1)))
        ->load(std::memory_order_acquire);
  }

  RingHeader& header_;
  const std::byte* data_;
  std::uint64_t capacity_;
  std::uint64_t taken_ = 0;
};

}  // namespace tensorbus::fabric
