#include "store/common/pattern.h"

#include <algorithm>
#include <cstddef>

namespace tensorbus::store {
namespace {

struct Character {
  char32_t code = 0;
  std::size_t size = 0;  // in bytes
};

// The UTF-8 character at the front; a byte that is none counts as a character, as in Python.
Character first_character(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t size = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (lead < 0x80) return {lead, 1};
  const Character invalid{0xDC00u + lead, 1};
  if (size == 1 || lead > 0xF4 || text.size() < size) return invalid;
  char32_t code = lead & (0xFFu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return invalid;
    code = (code << 6) | (byte(i) & 0x3Fu);
  }
  return {code, size};
}

struct Set {
  std::size_t size = 0;  // bytes of the pattern it takes; 0: not a set
  bool contains = false;
};

Set match_set(std::string_view pattern, char32_t c) noexcept {
  std::size_t at = 1;
  const bool negated = at < pattern.size() && pattern[at] == '!';
  if (negated) ++at;
  const std::size_t first = at;
  bool found = false;
  // A "]" that comes first is a member, not the end.
  while (at < pattern.size() && (pattern[at] != ']' || at == first)) {
    const Character low = first_character(pattern.substr(at));
    at += low.size;
    if (at + 1 < pattern.size() && pattern[at] == '-' && pattern[at + 1] != ']') {
      const Character high = first_character(pattern.substr(at + 1));
      found |= low.code <= c && c <= high.code;
      at += 1 + high.size;
    } else {
      found |= low.code == c;
    }
  }
  if (at >= pattern.size()) return {};
  return {at + 1, found != negated};
}

}  // namespace

bool matches(std::string_view pattern, std::string_view key) noexcept {
  // Where to go on after a mismatch: the last star, and the key position it has swallowed up to.
  std::size_t star = std::string_view::npos;
  std::size_t swallowed = 0;
  std::size_t p = 0;
  std::size_t k = 0;
  while (k < key.size()) {
    std::size_t taken = 0;
    const Character next = first_character(key.substr(k));
    if (p < pattern.size()) {
      const char c = pattern[p];
      if (c == '*') {
        star = p++;
        swallowed = k;
        continue;
      }
      if (c == '?') {
        taken = 1;
      } else if (c == '[') {
        const Set set = match_set(pattern.substr(p), next.code);
        if (set.size == 0) {
          taken = key[k] == '[' ? 1 : 0;
        } else if (set.contains) {
          taken = set.size;
        }
      } else if (pattern.substr(p).starts_with(key.substr(k, next.size))) {
        taken = next.size;
      }
    }
    if (taken > 0) {
      p += taken;
      k += next.size;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      swallowed += first_character(key.substr(swallowed)).size;
      k = swallowed;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string_view literal_prefix(std::string_view pattern) noexcept {
  return pattern.substr(0, pattern.find_first_of("*?["));
}

Pattern::Pattern(std::string text)
    : text_(std::move(text)), prefix_(literal_prefix(text_).size()), suffix_(text_.size()) {
  // A star inside of [..] is none.
  if (text_.find('[') != std::string::npos) return;
  const std::size_t last = text_.find_last_of("*?");
  if (last == std::string::npos || text_[last] != '*') return;
  suffix_ = last + 1;
  // Bytes that are no ASCII may be parts of characters.
  is_one_star_ = last == prefix_ && std::ranges::all_of(text_, [](char c) {
                   return static_cast<unsigned char>(c) < 0x80;
                 });
}

bool Pattern::matches(std::string_view key) const noexcept {
  const std::string_view begin = prefix();
  const std::string_view end = suffix();
  if (key.size() < begin.size() + end.size() || !key.starts_with(begin) || !key.ends_with(end)) {
    return false;
  }
  return is_one_star_ || store::matches(text_, key);
}

}  // namespace tensorbus::store
