// Addresses of hosts, without ports.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

struct sockaddr;

namespace tensorbus::os {

// IPv4 too is kept as IPv6 writes it, ::ffff:a.b.c.d, so that one host has one value.
struct IpAddress {
  std::array<std::uint8_t, 16> bytes{};  // in the order of the network

  bool is_v4() const noexcept;
  // Four bytes of the address as a number.
  std::uint32_t word(std::size_t index) const noexcept;
  friend auto operator<=>(const IpAddress&, const IpAddress&) = default;
};

// Nothing if the text is a name, or no address at all.
std::optional<IpAddress> parse_ip_address(const std::string& text);
std::optional<IpAddress> ip_address_of(const sockaddr& address);

// The addresses of this machine that others can see as the source of a socket's packets: the way to
// each host decides. `bound`, where the socket listens, comes first; then the addresses of every
// device that is up, but the loopback's and what is valid on one link only.
std::vector<IpAddress> own_ip_addresses(const std::string& bound);

}  // namespace tensorbus::os
