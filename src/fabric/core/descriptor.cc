#include "fabric/core/descriptor.h"

#include "fabric/core/packed_json.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

constexpr const char* what = "descriptor";
// A hundred thousand tensors fit.
constexpr std::size_t most_bytes = std::size_t{16} << 20;
constexpr std::size_t most_ways = 8;

std::vector<Way> ways_from(const Json& json) {
  if (!json.is_array() || json.empty() || json.size() > most_ways) {
    throw std::invalid_argument("a list of ways to read");
  }
  std::vector<Way> ways;
  for (const Json& item : json) {
    if (!item.is_array() || item.size() != 3) throw std::invalid_argument("a way of 3 fields");
    ways.push_back(
        {item[0].get<std::string>(), bytes_of(item[1]), unsigned_of<std::uint64_t>(item[2])});
  }
  return ways;
}

}  // namespace

std::vector<Address> addresses(const Descriptor& descriptor) {
  std::vector<Address> all;
  for (const Way& way : descriptor.ways) all.push_back({descriptor.owner, way.kind, way.where});
  return all;
}

std::string encode(const Descriptor& descriptor) {
  Json ways = Json::array();
  for (const Way& way : descriptor.ways) {
    ways.push_back(Json::array({way.kind, binary(way.where), way.region}));
  }
  return pack(what,
              {to_json(descriptor.owner), std::move(ways), descriptor.ticket,
               binary(descriptor.secret), descriptor.frozen, binary(encode(descriptor.forms))});
}

Descriptor decode_descriptor(std::string_view bytes) {
  return unpack(bytes, what, 6, most_bytes, [](const std::vector<Json>& json) {
    Descriptor descriptor;
    descriptor.owner = identity_from(json[0]);
    descriptor.ways = ways_from(json[1]);
    descriptor.ticket = unsigned_of<std::uint64_t>(json[2]);
    descriptor.secret = bytes_of(json[3]);
    descriptor.frozen = json[4].get<bool>();
    descriptor.forms = decode_forms(bytes_of(json[5]));
    return descriptor;
  });
}

}  // namespace tensorbus::fabric
