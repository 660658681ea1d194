// What workers and servers say to each other. Pure: bytes in, values out. Encoding appends to a
// string that its owner uses again, so that nothing is allocated once it has its size; decoding
// checks every length and throws Error(failed).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/bytes.h"
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
};

// Somewhere in an inlet of the receiver of what is written.
struct Place {
  std::uint64_t inlet = 0;  // 0: nowhere
  std::uint64_t offset = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

struct RequestHead {
  std::uint64_t number = 0;
  std::uint32_t word = 0;  // which of the worker's words, from 1; 0: it has none
  std::uint32_t pushes = 0;
  std::uint32_t pulls = 0;
  std::uint32_t unused = 0;
};
// Followed by `dims` extents.
struct Push {
  std::int64_t key = 0;
  Place place;
  std::uint32_t dims = 0;
  std::uint16_t dtype = 0;
  std::uint16_t landed = 0;  // 1: in a landing
};
struct Pull {
  Place place;
  std::uint64_t bytes = 0;
};
// Followed by the text of an error. With its first word in the ring it fills one cache line.
struct Answer {
  std::uint64_t number = 0;
  std::int64_t received = 0;
  std::int64_t given = 0;
  std::int64_t handed_over = 0;
  std::int64_t sent = 0;
  std::uint64_t code = 0;
};
struct WantSlot {
  std::uint64_t bytes = 0;
};
// Followed by the text of an error.
struct Slot {
  std::uint64_t bytes = 0;
  Place place;
  std::uint64_t code = 0;
};
struct Words {
  Place place;
  std::uint64_t bytes = 0;
};
struct FreeSlot {
  Place place;
};
struct InletClosed {
  std::uint64_t inlet = 0;
};
struct Landing {
  std::int64_t key = 0;
  Place place;  // nowhere: there is none any more
  std::uint64_t bytes = 0;
  Place word;
};

template <typename T>
void put(std::string& to, const T& value) {
  static_assert(std::has_unique_object_representations_v<T>, "padding would be sent");
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
inline void put_extents(std::string& to, std::span<const std::int64_t> extents) {
  to.append(reinterpret_cast<const char*>(extents.data()), extents.size_bytes());
}
template <typename T>
T take(Decoder& from) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, from.raw(sizeof value).data(), sizeof value);
  return value;
}

// The message so far is dropped.
inline void start(std::string& to, Kind kind) { to.assign(1, static_cast<char>(kind)); }
Kind take_kind(Decoder& from);

Code checked_code(std::uint64_t code);
Dtype checked_dtype(std::uint16_t dtype);
// The bytes of a tensor. Error(failed) if there is none of this shape.
std::uint64_t checked_bytes(Dtype dtype, std::span<const std::int64_t> shape);

}  // namespace tensorbus::push_pull::wire
