#include "fabric/core/identity.h"

#include <algorithm>

#include "fabric/core/packed_json.h"

namespace tensorbus::fabric {
namespace {

constexpr int version = 1;
// Longer ones are not ours: names, socket names and worker addresses are far below.
constexpr std::size_t most_address_bytes = 16 * 1024;

}  // namespace

Json to_json(const Identity& identity) {
  return Json::array(
      {identity.host, identity.pid, identity.start_time, binary(view(identity.id)), identity.name});
}

Identity identity_from(const Json& json) {
  if (!json.is_array() || json.size() != 5) throw std::invalid_argument("an identity of 5 fields");
  Identity identity;
  identity.host = json[0].get<std::string>();
  identity.pid = unsigned_of<std::int64_t>(json[1]);
  identity.start_time = unsigned_of<std::uint64_t>(json[2]);
  const std::string id = bytes_of(json[3]);
  if (id.size() != identity.id.size()) throw std::invalid_argument("an id of 16 bytes");
  std::ranges::copy(id, identity.id.begin());
  identity.name = json[4].get<std::string>();
  return identity;
}

void refuse(const std::string& what, const std::string& why) {
  throw Error(Code::invalid_argument, "this is not a " + what + ": " + why);
}

std::string pack(const std::string& what, std::vector<Json> fields) {
  Json list = Json::array({"tensorbus " + what, version});
  for (Json& field : fields) list.push_back(std::move(field));
  std::string bytes;
  Json::to_msgpack(list, bytes);
  return bytes;
}

std::vector<Json> unpack_fields(std::string_view bytes, const std::string& what, std::size_t count,
                                std::size_t most_bytes) {
  if (bytes.size() > most_bytes) refuse(what, std::to_string(bytes.size()) + " bytes are too many");
  Json json = Json::from_msgpack(bytes.begin(), bytes.end());
  if (!json.is_array() || json.size() < 2 || json[0] != "tensorbus " + what) {
    refuse(what, "it was made by something else");
  }
  if (json[1] != version) {
    refuse(what, "its version is " + json[1].dump() + ", ours is " + std::to_string(version) +
                     "; use the same release on both sides");
  }
  if (json.size() != count + 2) refuse(what, "it has " + std::to_string(json.size()) + " fields");
  return {std::make_move_iterator(json.begin() + 2), std::make_move_iterator(json.end())};
}

std::string to_string(const Identity& identity) {
  const std::string pid = "pid " + std::to_string(identity.pid);
  return identity.name.empty() ? pid : identity.name + " (" + pid + ")";
}

std::string encode(const Address& address) {
  return pack("address", {to_json(address.identity), address.kind, binary(address.where)});
}

Address decode_address(std::string_view bytes) {
  return unpack(bytes, "address", 3, most_address_bytes, [](const std::vector<Json>& fields) {
    return Address{identity_from(fields[0]), fields[1].get<std::string>(), bytes_of(fields[2])};
  });
}

}  // namespace tensorbus::fabric
