// Key patterns: `*` matches anything ("/" too), `?` one character, `[a-z]` and `[!a-z]` one of a
// set. Case-sensitive; a `[` that is never closed stands for itself.
#pragma once

#include <string>
#include <string_view>

namespace tensorbus::store {

bool matches(std::string_view pattern, std::string_view key) noexcept;

// The part before the first special character: only keys that start with that part can match.
std::string_view literal_prefix(std::string_view pattern) noexcept;

// A pattern for many keys: most are told by how they begin and end.
class Pattern {
 public:
  explicit Pattern(std::string text);

  bool matches(std::string_view key) const noexcept;
  const std::string& text() const noexcept { return text_; }
  std::string_view prefix() const noexcept { return std::string_view(text_).substr(0, prefix_); }

 private:
  // The part after the last `*`, if no special character is in it.
  std::string_view suffix() const noexcept { return std::string_view(text_).substr(suffix_); }

  std::string text_;
  std::size_t prefix_;        // where it ends
  std::size_t suffix_;        // where it begins
  bool is_one_star_ = false;  // between a prefix and a suffix
};

}  // namespace tensorbus::store
