// What a process hands to another so that it can read its tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/core/identity.h"
#include "fabric/core/region.h"
#include "wire/field.h"

namespace tensorbus::fabric {

// How one of the owner's fabrics offers the tensors.
struct Way {
  std::string kind;
  std::string where;         // Address::where
  std::uint64_t region = 0;  // never used again by that fabric, so it is the generation too

  friend bool operator==(const Way&, const Way&) = default;
};
template <typename Archive>
void fields(Archive& a, Way& way) {
  a("kind", way.kind);
  a.bytes("where", way.where);
  a("region", way.region);
}

// Whoever holds the secret may read: the descriptor is a capability, unless its secret is empty and
// readers know the secret from elsewhere.
struct Descriptor {
  Identity owner;
  std::vector<Way> ways;  // at most one per kind
  std::uint64_t ticket = 0;
  std::string secret;
  bool frozen = false;  // the owner promises not to write any more: readers may alias
  Forms forms;          // so that targets can be allocated before anybody is asked

  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};
constexpr wire::Title title_of(const Descriptor*) { return {"descriptor", 2}; }
template <typename Archive>
void fields(Archive& a, Descriptor& descriptor) {
  a("owner", descriptor.owner);
  a.list("ways", descriptor.ways, 8);
  a.require(!descriptor.ways.empty(), "there is no way to read");
  a("ticket", descriptor.ticket);
  a.bytes("secret", descriptor.secret);
  a("frozen", descriptor.frozen);
  a("forms", descriptor.forms);
  a.check([&] {
    for (const TensorForm& form : descriptor.forms) extent_of(form);
  });
}

std::vector<Address> addresses(const Descriptor& descriptor);

// With a version. Decoding throws Error(invalid_argument) that says what is wrong.
std::string encode(const Descriptor& descriptor);
Descriptor decode_descriptor(std::string_view bytes);

}  // namespace tensorbus::fabric
