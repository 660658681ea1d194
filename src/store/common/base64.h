// Bytes as text of 64 letters (RFC 4648, with padding).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tensorbus::store {

std::string to_base64(std::string_view bytes);
// Nothing if the text is not such a text.
std::optional<std::string> bytes_of_base64(std::string_view text);

}  // namespace tensorbus::store
