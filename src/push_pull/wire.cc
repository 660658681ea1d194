#include "push_pull/wire.h"

#include <algorithm>

namespace tensorbus::push_pull::wire {

Kind take_kind(Decoder& from) {
  const auto kind = from.integer<std::uint8_t>();
  if (kind < static_cast<std::uint8_t>(Kind::request) ||
      kind > static_cast<std::uint8_t>(Kind::part)) {
    throw Error(Code::failed, "a message of unknown kind");
  }
  return static_cast<Kind>(kind);
}

std::uint64_t take_long_number(Decoder& from, std::uint64_t first) {
  std::uint64_t value = first & 0x7f;
  for (unsigned shift = 7; shift < 64; shift += 7) {
    const std::uint64_t byte = static_cast<unsigned char>(from.raw(1).front());
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  throw Error(Code::failed, "a number without an end");
}

RequestHead take_head(Decoder& from) {
  RequestHead head;
  head.number = take_number(from);
  head.word = take_number(from);
  head.pushes = take_number(from);
  head.pulls = take_number(from);
  return head;
}

Push take_push(Decoder& from) {
  Push push;
  push.key = static_cast<std::int64_t>(take_number(from));
  push.place.inlet = take_number(from);
  push.place.offset = take_number(from);
  push.dims = take_number(from);
  push.dtype = take_number(from);
  push.landed = take_number(from);
  if (push.dims > from.left())
    throw Error(Code::failed, "a tensor of more dimensions than extents");
  return push;
}

void take_extents(Decoder& from, std::span<std::int64_t> extents) {
  for (std::int64_t& extent : extents) extent = static_cast<std::int64_t>(take_number(from));
}

Pull take_pull(Decoder& from) {
  Pull pull;
  pull.place.inlet = take_number(from);
  pull.place.offset = take_number(from);
  pull.bytes = take_number(from);
  return pull;
}

Code checked_code(std::uint64_t code) {
  if (code > static_cast<std::uint64_t>(Code::withdrawn)) return Code::failed;
  return static_cast<Code>(code);
}

Dtype checked_dtype(std::uint64_t dtype) {
  if (dtype >= all_dtypes().size()) throw Error(Code::failed, "a tensor of unknown type");
  return static_cast<Dtype>(dtype);
}

std::uint64_t checked_bytes(Dtype dtype, std::span<const std::int64_t> shape) {
  if (std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 0; })) {
    throw Error(Code::failed, "a tensor with a negative extent");
  }
  std::uint64_t bytes = item_bytes(dtype);
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes) ||
        bytes > std::uint64_t{1} << 62) {
      // An extent of 0 further on makes it empty all the same.
      if (std::ranges::find(shape, 0) != shape.end()) return 0;
      throw Error(Code::failed, "a tensor larger than any memory");
    }
  }
  return bytes;
}

}  // namespace tensorbus::push_pull::wire
