#include "fabric/route/address.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

using Json = nlohmann::json;

constexpr const char* kind_name = "routed";
constexpr std::size_t most_parts = 8;

std::string pack_addresses(std::span<const Address> addresses) {
  Json list = Json::array();
  for (const Address& address : addresses) {
    const std::string bytes = encode(address);
    list.push_back(Json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end())));
  }
  std::string packed;
  Json::to_msgpack(list, packed);
  return packed;
}

std::vector<Address> unpack_addresses(const Address& routed) try {
  const Json list = Json::from_msgpack(routed.where.begin(), routed.where.end());
  if (!list.is_array() || list.size() > most_parts) {
    throw std::invalid_argument("a list of addresses");
  }
  std::vector<Address> addresses;
  for (const Json& each : list) {
    const auto& bytes = each.get_binary();
    addresses.push_back(
        decode_address({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    addresses.back().identity = routed.identity;  // who it is said to be: the transport checks that
  }
  return addresses;
} catch (const std::exception& error) {
  throw Error(Code::invalid_argument, fmt::format("the address of {} is malformed: {}",
                                                  to_string(routed.identity), error.what()));
}

}  // namespace

Address joined(std::span<const Address> addresses) {
  if (addresses.size() == 1) return addresses.front();
  return {addresses.front().identity, kind_name, pack_addresses(addresses)};
}

std::vector<Address> parts_of(const Address& address) {
  return address.kind == kind_name ? unpack_addresses(address) : std::vector{address};
}

Address network_only(const Address& address) {
  if (address.kind != kind_name) return address;
  std::vector<Address> addresses = unpack_addresses(address);
  std::erase_if(addresses, [](const Address& each) { return each.kind != "ucx"; });
  return {address.identity, kind_name, pack_addresses(addresses)};
}

}  // namespace tensorbus::fabric
