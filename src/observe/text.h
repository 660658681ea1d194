// Texts that others wrote, as they may be shown: names come from records of any process.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tensorbus::observe {

// How many of the first bytes are one character of UTF-8; 0: none begins here.
std::size_t character_at(std::string_view text) noexcept;
// At most so many bytes, and no half of a character.
std::string_view cut_text(std::string_view text, std::size_t bytes) noexcept;
// For a terminal: what would move its cursor or change its colours is "?".
std::string printable(std::string_view text);
// How many columns of a terminal it takes, if every character takes one.
std::size_t columns_of(std::string_view text) noexcept;
// With its quotation marks; what is no UTF-8 is U+FFFD.
std::string to_json_string(std::string_view text);

}  // namespace tensorbus::observe
