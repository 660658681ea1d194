// What a process hands to another so that it can read its tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/core/identity.h"
#include "fabric/core/region.h"

namespace tensorbus::fabric {

// How one of the owner's fabrics offers the tensors.
struct Way {
  std::string kind;
  std::string where;         // Address::where
  std::uint64_t region = 0;  // never used again by that fabric, so it is the generation too

  friend bool operator==(const Way&, const Way&) = default;
};

// Whoever holds the secret may read: a capability, unless it is empty and readers know the secret
// from elsewhere.
struct Descriptor {
  Identity owner;
  std::vector<Way> ways;  // at most one per kind
  std::uint64_t ticket = 0;
  std::string secret;
  bool frozen = false;  // the owner promises not to write any more: readers may alias
  Forms forms;          // so that targets can be allocated before anybody is asked

  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};

std::vector<Address> addresses(const Descriptor& descriptor);

// MessagePack with a version. Decoding throws Error(invalid_argument) that says what is wrong.
std::string encode(const Descriptor& descriptor);
Descriptor decode_descriptor(std::string_view bytes);

}  // namespace tensorbus::fabric
