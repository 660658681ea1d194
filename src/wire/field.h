// What a struct says of itself to be written, read and printed: one list of its fields, beside it.
//
//   struct Offer { std::int64_t round = 0; std::string why; };
//   template <typename Archive>
//   void fields(Archive& a, Offer& offer) {
//     a.natural("round", offer.round);
//     a.message("why", offer.why, 4096);
//   }
//
// An archive is a Writer, a Reader or a Printer. Besides structs it knows numbers, truth values,
// texts, optionals, lists, maps, enumerations and variants; the latter two say by functions that
// are found beside their types which values there are:
//
//   constexpr Verify last_of(Verify) { return Verify::full; }
//   constexpr std::array<std::string_view, 2> kinds_of(const Placement*) { return {"a", "b"}; }
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "tensorbus/status.h"

namespace tensorbus::wire {

// Limits of fields that name no limit of their own.
inline constexpr std::size_t longest_text = 4096;
inline constexpr std::size_t most_numbers = 64;
inline constexpr std::size_t most_items = 1'000'000;
// Of messages of errors.
inline constexpr std::size_t longest_reason = 64 * 1024;

// How a value is called in messages. A value with a version begins with name and version when it is
// written, and values of another version are refused; 0: the value goes where versions were
// compared before.
struct Title {
  std::string_view what;
  std::uint8_t version = 0;
};

template <typename E>
concept Enumeration = std::is_enum_v<E>;

template <typename T>
inline constexpr bool is_list = false;
template <typename T>
inline constexpr bool is_list<std::vector<T>> = true;
template <typename T>
inline constexpr bool is_optional = false;
template <typename T>
inline constexpr bool is_optional<std::optional<T>> = true;
template <typename T>
inline constexpr bool is_map = false;
template <typename K, typename V>
inline constexpr bool is_map<std::map<K, V>> = true;
template <typename T>
inline constexpr bool is_variant = false;
template <typename... T>
inline constexpr bool is_variant<std::variant<T...>> = true;
template <typename T>
inline constexpr bool is_id = false;
template <std::size_t size>
inline constexpr bool is_id<std::array<char, size>> = true;

// The names of a variant's kinds, by their index: a byte on the wire.
template <typename Variant>
constexpr auto names_of_kinds() {
  constexpr auto names = kinds_of(static_cast<const Variant*>(nullptr));
  static_assert(names.size() == std::variant_size_v<Variant> && names.size() < 256);
  return names;
}

}  // namespace tensorbus::wire

namespace tensorbus {

constexpr Code last_of(Code) { return Code::withdrawn; }

template <typename Archive>
void fields(Archive& a, Status& status) {
  a("code", status.code);
  a.message("message", status.message, wire::longest_reason);
}

}  // namespace tensorbus
