#include "fabric/route/address.h"

#include <fmt/format.h>

#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

constexpr const char* kind_name = "routed";

std::vector<Address> unpack_addresses(const Address& routed) try {
  std::vector<Address> addresses = decode_addresses(routed.where);
  // Who the peer is said to be: the transport checks that.
  for (Address& each : addresses) each.identity = routed.identity;
  return addresses;
} catch (const std::exception& error) {
  throw Error(Code::invalid_argument, fmt::format("the address of {} is malformed: {}",
                                                  to_string(routed.identity), error.what()));
}

}  // namespace

Address joined(std::span<const Address> addresses) {
  if (addresses.size() == 1) return addresses.front();
  return {addresses.front().identity, kind_name,
          encode(std::vector(addresses.begin(), addresses.end()))};
}

std::vector<Address> parts_of(const Address& address) {
  return address.kind == kind_name ? unpack_addresses(address) : std::vector{address};
}

Address network_only(const Address& address) {
  if (address.kind != kind_name) return address;
  std::vector<Address> addresses = unpack_addresses(address);
  std::erase_if(addresses, [](const Address& each) { return each.kind != "ucx"; });
  return {address.identity, kind_name, encode(addresses)};
}

}  // namespace tensorbus::fabric
