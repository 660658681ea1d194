#include "fabric/core/identity.h"

#include "fabric/core/identity_fields.h"

namespace tensorbus::fabric {
namespace {

constexpr wire::Title address_title{"address", 2};
constexpr wire::Title addresses_title{"list of addresses"};
// Longer ones are not ours: names, socket names and worker addresses are far below.
constexpr std::size_t most_address_bytes = 16 * 1024;
constexpr std::size_t most_addresses = 8;

void check_size(std::string_view bytes) {
  if (bytes.size() <= most_address_bytes) return;
  throw Error(Code::invalid_argument,
              "malformed address: " + std::to_string(bytes.size()) + " bytes are too many");
}

}  // namespace

std::string to_string(const Identity& identity) {
  const std::string pid = "pid " + std::to_string(identity.pid);
  return identity.name.empty() ? pid : identity.name + " (" + pid + ")";
}

std::string encode(const Address& address) { return wire::write(address, address_title); }

Address decode_address(std::string_view bytes) {
  check_size(bytes);
  return wire::read<Address>(bytes, address_title);
}

std::string encode(const std::vector<Address>& addresses) {
  return wire::write(addresses, addresses_title);
}

std::vector<Address> decode_addresses(std::string_view bytes) {
  check_size(bytes);
  auto addresses = wire::read<std::vector<Address>>(bytes, addresses_title);
  if (addresses.size() <= most_addresses) return addresses;
  throw Error(Code::invalid_argument, "malformed list of addresses: there are too many");
}

}  // namespace tensorbus::fabric
