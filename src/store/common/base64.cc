#include "store/common/base64.h"

#include <array>
#include <cstdint>

namespace tensorbus::store {
namespace {

constexpr std::string_view letters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t no_letter = 64;

constexpr std::array<std::uint8_t, 256> values_of_letters() {
  std::array<std::uint8_t, 256> values{};
  values.fill(no_letter);
  for (std::uint8_t i = 0; i < letters.size(); ++i) {
    values[static_cast<unsigned char>(letters[i])] = i;
  }
  return values;
}

// Up to three bytes, as the upper bits of 24.
std::uint32_t group_of(std::string_view bytes) {
  std::uint32_t group = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    group = group << 8 | (i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u);
  }
  return group;
}

std::size_t padding_of(std::string_view text) {
  return text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::uint32_t group = group_of(bytes.substr(at, 3));
    for (int shift = 18; shift >= 0; shift -= 6) text += letters[group >> shift & 63];
  }
  const std::size_t left = bytes.size() % 3;
  if (left != 0) text.replace(text.size() - (3 - left), 3 - left, 3 - left, '=');
  return text;
}

std::optional<std::string> bytes_of_base64(std::string_view text) {
  static constexpr auto values = values_of_letters();
  if (text.size() % 4 != 0) return std::nullopt;
  text.remove_suffix(padding_of(text));
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char letter : text) {
    const std::uint8_t value = values[static_cast<unsigned char>(letter)];
    if (value == no_letter) return std::nullopt;
    bits = bits << 6 | value;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 255);
  }
  return bytes;
}

}  // namespace tensorbus::store
