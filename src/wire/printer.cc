#include "wire/printer.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorbus::wire {
namespace {

constexpr std::size_t most_digits_of = 64;  // bytes; longer ones are cut

bool moves_cursor(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }
bool is_ascii(char c) { return !moves_cursor(c) && static_cast<unsigned char>(c) < 0x7f; }

}  // namespace

std::string in_quotes(std::string_view text) {
  std::string text_in_quotes = "\"";
  for (const char c : text) {
    if (moves_cursor(c)) {
      text_in_quotes += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      if (c == '"' || c == '\\') text_in_quotes += '\\';
      text_in_quotes += c;
    }
  }
  return text_in_quotes + '"';
}

std::string readable(std::string_view bytes) {
  if (std::ranges::all_of(bytes, is_ascii)) return in_quotes(bytes);
  const std::string digits = to_hex(bytes.substr(0, most_digits_of));
  return fmt::format("{} bytes {}{}", bytes.size(), digits,
                     bytes.size() > most_digits_of ? "..." : "");
}

void Printer::line(std::string_view name, std::string_view value) {
  out_.append(2 * depth_, ' ').append(name).append(value.empty() ? ":" : ": ").append(value);
  out_ += '\n';
}

}  // namespace tensorbus::wire
