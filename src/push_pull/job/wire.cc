#include "push_pull/job/wire.h"

#include <algorithm>

namespace tensorbus::push_pull::wire {

void throw_unknown_kind() { throw Error(Code::failed, "a message of unknown kind"); }

void Body::broken(const char* how) {
  throw Error(Code::failed, std::string("a message that is broken: ") + how);
}

void Numbers::broken(const char* how) {
  throw Error(Code::failed, std::string("a request that is broken: ") + how);
}

RequestHead take_head(Numbers& from) {
  RequestHead head;
  head.number = from.next();
  head.word = from.next();
  head.pushes = from.next();
  head.pulls = from.next();
  head.standing = from.next();
  return head;
}

Push take_push(Numbers& from) {
  Push push;
  push.key = static_cast<std::int64_t>(from.next());
  push.place.inlet = from.next();
  push.place.offset = from.next();
  push.dims = from.next();
  push.dtype = from.next();
  push.landed = from.next();
  if (push.dims > from.left()) throw Error(Code::failed, "a tensor with too many dimensions");
  return push;
}

void take_extents(Numbers& from, std::span<std::int64_t> extents) {
  for (std::int64_t& extent : extents) extent = static_cast<std::int64_t>(from.next());
}

Pull take_pull(Numbers& from) {
  Pull pull;
  pull.place.inlet = from.next();
  pull.place.offset = from.next();
  pull.bytes = from.next();
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
