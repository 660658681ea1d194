// torch's TCPStore protocol, as a server reads it: no framing, no request ids, little-endian.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/common/entry_view.h"

namespace tensorbus::store {

enum class TorchOp : std::uint8_t {
  validate = 0,
  set = 1,
  compare_set = 2,
  get = 3,
  add = 4,
  check = 5,
  wait = 6,
  num_keys = 7,
  delete_key = 8,
  append = 9,
  multi_get = 10,
  multi_set = 11,
  cancel_wait = 12,
  ping = 13,
  queue_push = 14,
  queue_pop = 15,
  queue_len = 16,
  list_keys = 17,
  barrier = 18,
};

inline constexpr std::uint32_t torch_magic = 0x3C85F7CE;

// One request; views into the bytes it was parsed from.
struct TorchRequest {
  TorchOp op{};
  std::size_t size = 0;  // bytes of the whole request
  std::string_view key;
  std::string_view value;              // SET, APPEND, QUEUE_PUSH; COMPARE_SET: desired
  std::string_view expected;           // COMPARE_SET
  std::int64_t number = 0;             // ADD: amount; BARRIER: world size; VALIDATE, PING: the u32
  std::vector<std::string_view> keys;  // CHECK, WAIT, MULTI_GET
  std::vector<EntryView> entries;      // MULTI_SET
};

// Parses the request at the front of `bytes`. The request's size is 0 if more bytes are needed, and
// then `needed` says how many there must be before another try is worth while. Throws Error for
// what is not a request and for keys and values beyond the limits.
TorchRequest parse_torch_request(std::string_view bytes, std::size_t& needed);

// Replies.
std::string torch_string(std::string_view value);
template <typename T>
std::string torch_integer(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace tensorbus::store
