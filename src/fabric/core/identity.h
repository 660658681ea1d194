// Who a process is and how it is reached: small values that travel through stores and descriptors.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.h"

namespace tensorbus::fabric {

// A process as its peers know it. A pid is used again, a pid together with its start time is not;
// the id tells apart several fabrics of one process and what a restart left in a store.
struct Identity {
  std::string host;              // boot id and network namespace
  std::int64_t pid = 0;          // in its own pid namespace
  std::uint64_t start_time = 0;  // clock ticks since boot
  Id16 id{};
  std::string name;  // what messages call it: "rank 3"

  friend bool operator==(const Identity&, const Identity&) = default;
};

// "rank 3 (pid 4711)".
std::string to_string(const Identity& identity);

// One way to reach a process. `where` means something to the fabric of that kind only.
struct Address {
  Identity identity;
  std::string kind;  // "memory", "shm", "ucx"
  std::string where;

  friend bool operator==(const Address&, const Address&) = default;
};

// With a version. Decoding throws Error(invalid_argument) that says what is wrong.
std::string encode(const Address& address);
Address decode_address(std::string_view bytes);
// Several in one, inside of a value that has a version.
std::string encode(const std::vector<Address>& addresses);
std::vector<Address> decode_addresses(std::string_view bytes);

}  // namespace tensorbus::fabric
