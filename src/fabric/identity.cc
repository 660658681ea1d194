#include "fabric/identity.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

using Json = nlohmann::json;

constexpr int version = 1;
// Longer ones are not ours: names, socket names and worker addresses are far below.
constexpr std::size_t most_bytes = 16 * 1024;

std::string pack(const Json& json) {
  std::string bytes;
  Json::to_msgpack(json, bytes);
  return bytes;
}

Json binary(std::string_view bytes) {
  return Json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
}

std::string bytes_of(const Json& json) {
  const auto& bytes = json.get_binary();
  return {bytes.begin(), bytes.end()};
}

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw Error(Code::invalid_argument, "this is not a " + what + ": " + why);
}

template <typename T>
T unsigned_of(const Json& json) {
  if (!json.is_number_unsigned()) throw std::invalid_argument("a negative or broken number");
  return json.get<T>();
}

Json to_json(const Address& address) {
  const Identity& identity = address.identity;
  return Json::array({identity.host, identity.pid, identity.start_time, binary(view(identity.id)),
                      identity.name, address.kind, binary(address.where)});
}

Address address_from(const Json& json) {
  if (!json.is_array() || json.size() != 7) throw std::invalid_argument("an address of 7 fields");
  Address address;
  address.identity.host = json[0].get<std::string>();
  address.identity.pid = unsigned_of<std::int64_t>(json[1]);
  address.identity.start_time = unsigned_of<std::uint64_t>(json[2]);
  const std::string id = bytes_of(json[3]);
  if (id.size() != address.identity.id.size()) throw std::invalid_argument("an id of 16 bytes");
  std::ranges::copy(id, address.identity.id.begin());
  address.identity.name = json[4].get<std::string>();
  address.kind = json[5].get<std::string>();
  address.where = bytes_of(json[6]);
  return address;
}

// [magic, version, ...]
Json unpack(std::string_view bytes, const std::string& what, std::size_t fields) {
  if (bytes.size() > most_bytes) refuse(what, std::to_string(bytes.size()) + " bytes are too many");
  Json json = Json::from_msgpack(bytes.begin(), bytes.end());
  if (!json.is_array() || json.size() < 2 || json[0] != "tensorbus " + what) {
    refuse(what, "it was made by something else");
  }
  if (json[1] != version) {
    refuse(what, "its version is " + json[1].dump() + ", ours is " + std::to_string(version) +
                     "; use the same release on both sides");
  }
  if (json.size() != fields) refuse(what, "it has " + std::to_string(json.size()) + " fields");
  return json;
}

}  // namespace

std::string to_string(const Identity& identity) {
  const std::string pid = "pid " + std::to_string(identity.pid);
  return identity.name.empty() ? pid : identity.name + " (" + pid + ")";
}

std::string encode(const Address& address) {
  return pack(Json::array({"tensorbus address", version, to_json(address)}));
}

std::string encode(const Descriptor& descriptor) {
  return pack(Json::array({"tensorbus descriptor", version, to_json(descriptor.owner),
                           descriptor.region, descriptor.ticket, binary(descriptor.secret)}));
}

Address decode_address(std::string_view bytes) try {
  return address_from(unpack(bytes, "address", 3)[2]);
} catch (const Error&) {
  throw;
} catch (const std::exception& error) {
  refuse("address", error.what());
}

Descriptor decode_descriptor(std::string_view bytes) try {
  const Json json = unpack(bytes, "descriptor", 6);
  Descriptor descriptor;
  descriptor.owner = address_from(json[2]);
  descriptor.region = unsigned_of<std::uint64_t>(json[3]);
  descriptor.ticket = unsigned_of<std::uint64_t>(json[4]);
  descriptor.secret = bytes_of(json[5]);
  return descriptor;
} catch (const Error&) {
  throw;
} catch (const std::exception& error) {
  refuse("descriptor", error.what());
}

}  // namespace tensorbus::fabric
