#include "store/common/limits.h"

#include <fmt/format.h>

namespace tensorbus::store {

void check_key(std::string_view key) {
  // torch's clients put a "/" before each key, and the limit counts it.
  constexpr std::size_t largest = max_key_size - 1;
  if (key.size() > largest) {
    throw Error(Code::invalid_argument,
                fmt::format("key is too long: {} bytes, at most {} are allowed (it starts with "
                            "\"{}\")",
                            key.size(), largest, key.substr(0, 40)));
  }
}

void check_keys(std::span<const std::string> keys) {
  for (const std::string& key : keys) check_key(key);
}

void check_entries(std::span<const Entry> entries, std::size_t largest_value) {
  for (const Entry& entry : entries) {
    check_key(entry.key);
    if (entry.value.size() > largest_value) {
      throw Error(Code::invalid_argument,
                  fmt::format("value of key \"{}\" is too large: {} bytes, at most {} are allowed",
                              entry.key, entry.value.size(), largest_value));
    }
  }
}

void check_condition(const Condition& condition) {
  check_key(condition.key);
  check_keys(condition.candidates);
  if (condition.value && condition.value->size() > max_value_size) {
    throw Error(Code::invalid_argument, "the value to wait for is larger than any value can be");
  }
}

void check_barrier(std::string_view name, std::size_t count) {
  check_key(name);
  if (count == 0) {
    throw Error(Code::invalid_argument,
                fmt::format("barrier \"{}\" needs a count of at least 1", name));
  }
}

void check_time_to_live(Duration time_to_live) {
  if (time_to_live < std::chrono::milliseconds(100) || time_to_live > std::chrono::hours(24)) {
    throw Error(Code::invalid_argument,
                fmt::format("a lease lives between 0.1 s and 24 h, not {} s",
                            std::chrono::duration<double>(time_to_live).count()));
  }
}

}  // namespace tensorbus::store
