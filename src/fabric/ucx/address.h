// Addresses of workers as they travel: the hosts that such a worker calls from, then what UCX says,
// with a checksum before all: UCX trusts these bytes and ends the process over broken ones. The
// checksum, which needs no secret, is against damage, not against forgers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.h"
#include "os/net/ip_address.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric::ucx {

inline constexpr std::size_t checksum_bytes = 8;
// Of a machine with more addresses only the first count.
inline constexpr std::size_t most_hosts = 32;

struct WorkerAddress {
  std::vector<os::IpAddress> hosts;
  std::string worker;  // as UCX made it
};

inline std::string with_checksum(std::string_view bytes) {
  const std::string sum = proof_of("tensorbus worker address", bytes).substr(0, checksum_bytes);
  return sum + std::string(bytes);
}

inline std::string pack(const WorkerAddress& address) {
  const std::size_t count = std::min(address.hosts.size(), most_hosts);
  std::string bytes(1, static_cast<char>(count));
  for (std::size_t i = 0; i < count; ++i) {
    bytes.append(address.hosts[i].bytes.begin(), address.hosts[i].bytes.end());
  }
  return with_checksum(bytes + address.worker);
}

// Error(invalid_argument) unless the bytes are as they were made.
inline WorkerAddress unpack(std::string_view bytes) {
  std::string_view left = bytes.substr(std::min(bytes.size(), checksum_bytes));
  const std::size_t hosts = left.empty() ? 0 : static_cast<std::uint8_t>(left.front());
  if (with_checksum(left) != bytes || hosts > most_hosts ||
      left.size() <= 1 + hosts * sizeof(os::IpAddress)) {
    throw Error(Code::invalid_argument, "the network address of the peer is damaged");
  }
  left.remove_prefix(1);
  WorkerAddress address;
  for (std::size_t i = 0; i < hosts; ++i) {
    os::IpAddress host;
    std::copy_n(left.begin(), host.bytes.size(), host.bytes.begin());
    address.hosts.push_back(host);
    left.remove_prefix(host.bytes.size());
  }
  address.worker = left;
  return address;
}

}  // namespace tensorbus::fabric::ucx
