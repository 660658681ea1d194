// Random names and proofs that a secret is known.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tensorbus {

// Random: names a session, a process or a challenge. Nobody guesses an id, and none comes twice.
using Id16 = std::array<char, 16>;
Id16 random_id();
// For incarnations, serials and registrations: as hard to guess as an id, and never 0.
std::uint64_t random_number();
std::string_view view(const Id16& id) noexcept;
std::string to_hex(std::string_view bytes);

inline constexpr std::size_t proof_size = 32;

// HMAC-SHA256 of the text. The text must hold a challenge of each side and the role of the one that
// proves, so that a proof fits one connection and cannot be sent back.
std::string proof_of(std::string_view secret, std::string_view text);

// Takes a time that does not tell how much of a proof is right.
bool proofs_equal(std::string_view a, std::string_view b) noexcept;

}  // namespace tensorbus
