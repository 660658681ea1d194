#include "os/net/ip_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "os/io/fd.h"

namespace tensorbus::os {
namespace {

constexpr std::array<std::uint8_t, 12> v4_prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

IpAddress from_v4(const in_addr& address) {
  IpAddress found;
  std::ranges::copy(v4_prefix, found.bytes.begin());
  std::memcpy(found.bytes.data() + v4_prefix.size(), &address, sizeof address);
  return found;
}

IpAddress from_v6(const in6_addr& address) {
  IpAddress found;
  std::memcpy(found.bytes.data(), &address, sizeof address);
  return found;
}

bool is_seen_by_others(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  if ((entry.ifa_flags & IFF_LOOPBACK) != 0) return false;
  if (entry.ifa_addr->sa_family != AF_INET6) return true;
  const auto& address = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr;
  return !IN6_IS_ADDR_LINKLOCAL(&address);
}

}  // namespace

bool IpAddress::is_v4() const noexcept {
  return std::equal(v4_prefix.begin(), v4_prefix.end(), bytes.begin());
}

std::uint32_t IpAddress::word(std::size_t index) const noexcept {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + 4 * index, sizeof value);
  return ntohl(value);
}

std::optional<IpAddress> parse_ip_address(const std::string& text) {
  in_addr v4{};
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) return from_v4(v4);
  in6_addr v6{};
  if (::inet_pton(AF_INET6, text.c_str(), &v6) == 1) return from_v6(v6);
  return std::nullopt;
}

std::optional<IpAddress> ip_address_of(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return from_v4(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  }
  if (address.sa_family == AF_INET6) {
    return from_v6(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  }
  return std::nullopt;
}

std::vector<IpAddress> own_ip_addresses(const std::string& bound) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw_errno("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<IpAddress> found;
  if (const auto address = parse_ip_address(bound)) found.push_back(*address);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!is_seen_by_others(*entry)) continue;
    const auto address = ip_address_of(*entry->ifa_addr);
    if (address && std::ranges::find(found, *address) == found.end()) found.push_back(*address);
  }
  return found;
}

}  // namespace tensorbus::os
