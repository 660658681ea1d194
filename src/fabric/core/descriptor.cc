#include "fabric/core/descriptor.h"

#include "fabric/core/identity_fields.h"
#include "tensor/fields.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

// A hundred thousand tensors fit.
constexpr std::size_t most_bytes = std::size_t{16} << 20;

}  // namespace

std::vector<Address> addresses(const Descriptor& descriptor) {
  std::vector<Address> all;
  for (const Way& way : descriptor.ways) all.push_back({descriptor.owner, way.kind, way.where});
  return all;
}

std::string encode(const Descriptor& descriptor) { return wire::write(descriptor); }

Descriptor decode_descriptor(std::string_view bytes) {
  if (bytes.size() > most_bytes) {
    throw Error(Code::invalid_argument,
                "malformed descriptor: " + std::to_string(bytes.size()) + " bytes are too many");
  }
  return wire::read<Descriptor>(bytes);
}

}  // namespace tensorbus::fabric
