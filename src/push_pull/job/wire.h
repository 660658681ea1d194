// What workers and servers say to each other. Pure: bytes in, values out. Decoding checks every
// length and throws Error(failed).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tensorbus/dtype.h"
#include "tensorbus/status.h"

namespace tensorbus::push_pull::wire {

enum class Kind : std::uint8_t {
  request = 1,   // worker: tensors are in these slots, answers belong into those places
  answer,        // server: they are there, or why not; the request's slots are free again
  want_slot,     // worker: a slot of this size
  slot,          // server: here it is, or why not
  free_slot,     // worker: not needed any more
  words,         // worker: where the words of its requests are
  landing,       // server: pushes of this key go here while its word says free
  inlet_closed,  // either: no slot is left in it
  part,          // a piece of a message that is too long for one
  again,         // worker: a request that the server knows, with other bytes in its slots
  forget,        // worker: that one does not come again
};

// The most standing requests that a server knows of one worker.
inline constexpr std::size_t most_standing = 128;

// Somewhere in an inlet of the receiver of what is written.
struct InletPlace {
  std::uint64_t inlet = 0;  // 0: nowhere
  std::uint64_t offset = 0;
  friend bool operator==(const InletPlace&, const InletPlace&) = default;
};

// The three parts of a request are written as numbers of variable length: with one small tensor
// each way a request fits into one cache line, and that line is all that goes from core to core.
struct RequestHead {
  std::uint64_t number = 0;
  std::uint64_t word = 0;  // which of the worker's words, from 1; 0: it has none
  std::uint64_t pushes = 0;
  std::uint64_t pulls = 0;
  std::uint64_t standing = 0;  // under which number it comes again, from 1; 0: it does not
};
// Followed by `dims` extents.
struct Push {
  std::int64_t key = 0;
  InletPlace place;
  std::uint64_t dims = 0;
  std::uint64_t dtype = 0;
  std::uint64_t landed = 0;  // 1: in a landing
};
struct Pull {
  InletPlace place;
  std::uint64_t bytes = 0;
};
// Followed by the text of an error. With its first word in the ring an answer fills one cache line.
struct Answer {
  std::uint64_t number = 0;
  // Received, given to the server's code, handed over, sent. On one host in the ticks that both
  // count, on a network in nanoseconds.
  std::array<std::int64_t, 4> times{};
  std::uint64_t code = 0;
};
struct Again {
  std::uint64_t number = 0;
  std::uint64_t standing = 0;
};
struct Forget {
  std::uint64_t standing = 0;
};
struct WantSlot {
  std::uint64_t bytes = 0;
};
// Followed by the text of an error.
struct Slot {
  std::uint64_t bytes = 0;
  InletPlace place;
  std::uint64_t code = 0;
};
struct Words {
  InletPlace place;
  std::uint64_t bytes = 0;
};
struct FreeSlot {
  InletPlace place;
};
struct InletClosed {
  std::uint64_t inlet = 0;
};
struct Landing {
  std::int64_t key = 0;
  InletPlace place;  // nowhere: there is none any more
  std::uint64_t bytes = 0;
  InletPlace word;
};

// A message that is being written. The next message uses the memory again.
class Message {
 public:
  explicit Message(Kind kind) { start(kind); }
  Message() = default;

  // The message so far is dropped.
  void start(Kind kind) {
    size_ = 0;
    *room(1) = static_cast<char>(kind);
    ++size_;
  }
  // The value as it lies in memory.
  template <typename T>
  void put(const T& value) {
    static_assert(std::has_unique_object_representations_v<T>, "padding would be sent");
    std::memcpy(room(sizeof value), &value, sizeof value);
    size_ += sizeof value;
  }
  void put_text(std::string_view text) {
    std::ranges::copy(text, room(text.size()));
    size_ += text.size();
  }

  void put(const RequestHead& head) {
    char* at = room(5 * longest_number);
    at = number(at, head.number);
    at = number(at, head.word);
    at = number(at, head.pushes);
    at = number(at, head.pulls);
    end(number(at, head.standing));
  }
  void put(const Push& push, std::span<const std::int64_t> shape) {
    char* at = room((6 + shape.size()) * longest_number);
    at = number(at, static_cast<std::uint64_t>(push.key));
    at = number(at, push.place.inlet);
    at = number(at, push.place.offset);
    at = number(at, push.dims);
    at = number(at, push.dtype);
    at = number(at, push.landed);
    for (const std::int64_t extent : shape) at = number(at, static_cast<std::uint64_t>(extent));
    end(at);
  }
  void put(const Pull& pull) {
    char* at = room(3 * longest_number);
    at = number(at, pull.place.inlet);
    at = number(at, pull.place.offset);
    end(number(at, pull.bytes));
  }

  std::string_view bytes() const noexcept { return {memory_.data(), size_}; }

 private:
  // Seven bits in a byte, the lowest first; the top bit says that there is another.
  static constexpr std::size_t longest_number = 10;
  static char* number(char* at, std::uint64_t value) noexcept {
    for (; value >= 0x80; value >>= 7) *at++ = static_cast<char>(value | 0x80);
    *at++ = static_cast<char>(value);
    return at;
  }

  char* room(std::size_t bytes) {
    if (memory_.size() - size_ < bytes) memory_.resize(2 * memory_.size() + bytes);
    return memory_.data() + size_;
  }
  void end(const char* at) noexcept { size_ = static_cast<std::size_t>(at - memory_.data()); }

  std::vector<char> memory_ = std::vector<char>(256);
  std::size_t size_ = 0;
};

// What is left to read of a message. Bytes are borrowed; every step is small enough to be inlined,
// since each message takes several.
class Body {
 public:
  explicit Body(std::string_view bytes) : rest_(bytes) {}

  std::string_view raw(std::size_t size) {
    if (size > rest_.size()) broken("it is cut short");
    const std::string_view taken(rest_.data(), size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::size_t left() const noexcept { return rest_.size(); }
  void end() const {
    if (!rest_.empty()) broken("there are bytes too many in it");
  }

 private:
  [[noreturn]] static void broken(const char* how);

  std::string_view rest_;
};

template <typename T>
T take(Body& from) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, from.raw(sizeof value).data(), sizeof value);
  return value;
}

// The numbers of a request, one after the other.
class Numbers {
 public:
  explicit Numbers(std::string_view bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  std::uint64_t next() {
    std::uint64_t byte = next_byte();
    std::uint64_t value = byte & 0x7f;
    for (unsigned shift = 7; byte >= 0x80; shift += 7) {
      if (shift >= 64) broken("a number without an end");
      byte = next_byte();
      value |= (byte & 0x7f) << shift;
    }
    return value;
  }
  std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }
  void end() const {
    if (at_ != end_) broken("more than its tensors");
  }

 private:
  std::uint64_t next_byte() {
    if (at_ == end_) broken("cut short");
    return static_cast<unsigned char>(*at_++);
  }
  [[noreturn]] static void broken(const char* how);

  const char* at_;
  const char* end_;
};

RequestHead take_head(Numbers& from);
Push take_push(Numbers& from);
// As many as there is room for.
void take_extents(Numbers& from, std::span<std::int64_t> extents);
Pull take_pull(Numbers& from);

[[noreturn]] void throw_unknown_kind();
inline Kind take_kind(Body& from) {
  const auto kind = static_cast<std::uint8_t>(from.raw(1).front());
  if (kind < static_cast<std::uint8_t>(Kind::request) ||
      kind > static_cast<std::uint8_t>(Kind::forget)) {
    throw_unknown_kind();
  }
  return static_cast<Kind>(kind);
}

Code checked_code(std::uint64_t code);
Dtype checked_dtype(std::uint64_t dtype);
// The bytes of a tensor. Error(failed) if there is none of this shape.
std::uint64_t checked_bytes(Dtype dtype, std::span<const std::int64_t> shape);

}  // namespace tensorbus::push_pull::wire
