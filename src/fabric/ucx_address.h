// Addresses of workers as they travel, with a checksum before them: UCX trusts their bytes and ends
// the process over broken ones. Against damage, not against forgers: it needs no secret.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/secret.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric::ucx {

inline constexpr std::size_t checksum_bytes = 8;

inline std::string with_checksum(std::string_view address) {
  const std::string sum = proof_of("tensorbus worker address", address).substr(0, checksum_bytes);
  return sum + std::string(address);
}

// The address itself. Error(invalid_argument) unless it is as it was made.
inline std::string_view without_checksum(std::string_view bytes) {
  const std::string_view address = bytes.substr(std::min(bytes.size(), checksum_bytes));
  if (address.empty() || with_checksum(address) != bytes) {
    throw Error(Code::invalid_argument, "the network address of the peer is damaged");
  }
  return address;
}

}  // namespace tensorbus::fabric::ucx
