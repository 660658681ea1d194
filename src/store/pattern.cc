#include "store/pattern.h"

#include <cstddef>

namespace tensorbus::store {
namespace {

struct Set {
  std::size_t size = 0;  // characters of the pattern it takes; 0: not a set
  bool contains = false;
};

Set match_set(std::string_view pattern, unsigned char c) noexcept {
  std::size_t at = 1;
  const bool negated = at < pattern.size() && pattern[at] == '!';
  if (negated) ++at;
  const std::size_t first = at;
  bool found = false;
  // A "]" that comes first is a member, not the end.
  for (; at < pattern.size() && (pattern[at] != ']' || at == first); ++at) {
    const auto low = static_cast<unsigned char>(pattern[at]);
    if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
      found |= low <= c && c <= static_cast<unsigned char>(pattern[at + 2]);
      at += 2;
    } else {
      found |= low == c;
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
        const Set set = match_set(pattern.substr(p), static_cast<unsigned char>(key[k]));
        if (set.size == 0) {
          taken = key[k] == '[' ? 1 : 0;
        } else if (set.contains) {
          taken = set.size;
        }
      } else if (c == key[k]) {
        taken = 1;
      }
    }
    if (taken > 0) {
      p += taken;
      ++k;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      k = ++swallowed;
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

}  // namespace tensorbus::store
