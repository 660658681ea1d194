// What endpoints tell each other beside the bytes of tensors.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fabric/core/boxes.h"
#include "wire/field.h"

namespace tensorbus::endpoint {

// What an endpoint and those that alias its memory tell each other.
struct AliasMessage {
  enum class Kind : std::uint8_t {
    hold,
    held,
    refused,  // read it instead
    gone,     // it was taken back
    let_go,
  };
  Kind kind = Kind::hold;
  std::uint64_t region = 0;
  std::uint64_t read = 0;  // the reader's number for it; the answers bear it, too
  friend bool operator==(const AliasMessage&, const AliasMessage&) = default;
};
constexpr AliasMessage::Kind last_of(AliasMessage::Kind) { return AliasMessage::Kind::let_go; }

// A reader that cannot see the owner's memory names the boxes that it wants packed.
struct PartsWanted {
  std::uint64_t read = 0;  // the reader's number for it
  std::uint64_t region = 0;
  std::vector<fabric::TensorBox> boxes;
  friend bool operator==(const PartsWanted&, const PartsWanted&) = default;
};

// The owner's answer.
struct PartsServed {
  enum class Kind : std::uint8_t {
    served,
    gone,  // the region was taken back
    full,  // the region serves as many lists of boxes as it may
  };
  std::uint64_t read = 0;
  Kind kind = Kind::served;
  std::uint64_t stream = 0;  // by which the boxes are read
  friend bool operator==(const PartsServed&, const PartsServed&) = default;
};
constexpr PartsServed::Kind last_of(PartsServed::Kind) { return PartsServed::Kind::full; }

using EndpointMessage = std::variant<AliasMessage, PartsWanted, PartsServed>;
constexpr std::array<std::string_view, 3> kinds_of(const EndpointMessage*) {
  return {"alias", "parts wanted", "parts served"};
}

std::string encode(const EndpointMessage& message);
// Error(invalid_argument) for bytes that are no such message.
EndpointMessage decode_message(std::string_view bytes);

template <typename Archive>
void fields(Archive& a, AliasMessage& message) {
  a("kind", message.kind);
  a("region", message.region);
  a("read", message.read);
}

template <typename Archive>
void fields(Archive& a, PartsWanted& wanted) {
  a("read", wanted.read);
  a("region", wanted.region);
  a("boxes", wanted.boxes);
}

template <typename Archive>
void fields(Archive& a, PartsServed& served) {
  a("read", served.read);
  a("kind", served.kind);
  a("stream", served.stream);
}

}  // namespace tensorbus::endpoint

namespace tensorbus::fabric {

template <typename Archive>
void fields(Archive& a, TensorBox& box) {
  a.number("tensor", box.tensor, 0, INT64_MAX);
  a("start", box.start);
  a("shape", box.shape);
}

}  // namespace tensorbus::fabric
