// What every decoder of bytes from outside must do.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "tensorbus/status.h"

namespace tensorbus {

inline constexpr auto encode_value = [](const auto& value) { return encode(value); };

// Of any bytes it makes a value that is encoded and decoded to itself, or an error in words:
// invalid_argument or the other code that its decoder uses.
template <typename Decode, typename Encode = decltype(encode_value)>
void check_decoder(Decode decode, std::string_view bytes, Encode encoded = encode_value,
                   Code another = Code::invalid_argument) {
  try {
    const std::string again = encoded(decode(bytes));
    if (encoded(decode(again)) != again) std::abort();
  } catch (const Error& error) {
    if (error.code() != Code::invalid_argument && error.code() != another) std::abort();
  }
}

}  // namespace tensorbus
