// Key patterns: `*` matches anything ("/" too), `?` one character, `[a-z]` and `[!a-z]` one of a
// set. Case-sensitive; a `[` that is never closed stands for itself.
#pragma once

#include <string_view>

namespace tensorbus::store {

bool matches(std::string_view pattern, std::string_view key) noexcept;

// The part before the first special character: only keys that start with it can match.
std::string_view literal_prefix(std::string_view pattern) noexcept;

}  // namespace tensorbus::store
