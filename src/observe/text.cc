#include "observe/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace tensorbus::observe {
namespace {

unsigned char byte_at(std::string_view text, std::size_t at) noexcept {
  return static_cast<unsigned char>(text[at]);
}

std::size_t length_by_first(unsigned char first) noexcept {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

// Too long a form, a surrogate, or beyond the last character.
bool is_no_character(std::string_view text) noexcept {
  const unsigned char first = byte_at(text, 0);
  const unsigned char second = byte_at(text, 1);
  return (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
         (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
}

// C0, DEL, C1, and the marks that turn the direction of what follows.
bool moves_cursor(std::string_view character) noexcept {
  const unsigned char first = byte_at(character, 0);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  if (character.size() == 2) return first == 0xc2 && byte_at(character, 1) < 0xa0;
  const bool general = first == 0xe2 && (byte_at(character, 1) == 0x80);
  const unsigned char last = byte_at(character, character.size() - 1);
  return general && ((last >= 0x8e && last <= 0x8f) || (last >= 0xa8 && last <= 0xae));
}

}  // namespace

std::size_t character_at(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const std::size_t length = length_by_first(byte_at(text, 0));
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t at = 1; at < length; ++at) {
    if ((byte_at(text, at) & 0xc0) != 0x80) return 0;
  }
  return length > 1 && is_no_character(text) ? 0 : length;
}

std::string_view cut_text(std::string_view text, std::size_t bytes) noexcept {
  if (text.size() <= bytes) return text;
  std::size_t end = bytes;
  while (end > 0 && (byte_at(text, end) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = character_at(text);
    const auto character = text.substr(0, std::max<std::size_t>(length, 1));
    out += length == 0 || moves_cursor(character) ? "?" : character;
    text.remove_prefix(character.size());
  }
  return out;
}

std::size_t columns_of(std::string_view text) noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string to_json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = character_at(text);
    const auto character = text.substr(0, std::max<std::size_t>(length, 1));
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (character == "\"" || character == "\\") {
      out += '\\';
      out += character;
    } else if (byte_at(character, 0) < 0x20) {
      out += fmt::format("\\u{:04x}", byte_at(character, 0));
    } else {
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out + "\"";
}

}  // namespace tensorbus::observe
