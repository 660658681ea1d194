// Little-endian encoding of integers and strings: how our frames and files are written and read.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "tensorbus/status.h"

namespace tensorbus {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

template <typename T>
concept Integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// Appends to a string of its own.
class Encoder {
 public:
  template <Integer T>
  Encoder& integer(T value) {
    const auto at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  // A length of 32 bits, then the bytes.
  Encoder& string(std::string_view value) {
    integer(static_cast<std::uint32_t>(value.size()));
    return raw(value);
  }
  Encoder& raw(std::string_view value) {
    bytes_.append(value);
    return *this;
  }

  std::size_t size() const noexcept { return bytes_.size(); }
  // Overwrites an integer written earlier, for lengths that are known only at the end.
  template <Integer T>
  void patch(std::size_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  const std::string& bytes() const& noexcept { return bytes_; }
  std::string bytes() && noexcept { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what an Encoder wrote. Bytes are borrowed; whatever is missing or too long is an Error.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}

  template <Integer T>
  T integer() {
    T value;
    std::memcpy(&value, raw(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view string() { return raw(integer<std::uint32_t>()); }
  std::string_view raw(std::size_t size) {
    if (size > rest_.size()) {
      throw Error(Code::failed, "message is cut short: " + std::to_string(size) +
                                    " bytes wanted, " + std::to_string(rest_.size()) + " left");
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::size_t left() const noexcept { return rest_.size(); }
  // The length of a list whose elements take at least this many bytes each, so that a forged count
  // cannot make us allocate much.
  std::size_t count(std::size_t smallest_element) {
    const auto n = integer<std::uint32_t>();
    if (n > rest_.size() / smallest_element)
      throw Error(Code::failed, "message holds an impossible count");
    return n;
  }
  void end() const {
    if (!rest_.empty()) {
      throw Error(Code::failed, std::to_string(rest_.size()) + " bytes too many in a message");
    }
  }

 private:
  std::string_view rest_;
};

}  // namespace tensorbus
