// Values of any struct by its list of fields, and what must hold for their bytes.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "wire/message.h"

namespace tensorbus::wire {

// An archive that fills fields with whatever they may hold.
class RandomFields {
 public:
  explicit RandomFields(std::uint64_t seed) : random_(seed) {}

  template <typename T>
  void operator()(const char*, T& value) {
    fill(value);
  }
  template <Integer T>
  void number(const char*, T& value, std::int64_t least, std::int64_t most) {
    value = static_cast<T>(std::uniform_int_distribution<std::int64_t>(least, most)(random_));
  }
  void natural(const char* name, std::int64_t& value) { number(name, value, 0, INT64_MAX); }
  void text(const char*, std::string& value, std::size_t) { fill(value); }
  template <typename T>
  void bytes(const char*, T& value) {
    fill(value);
  }
  void message(const char*, std::string& value, std::size_t) { fill(value); }
  template <typename List>
  void list(const char*, List& value, std::size_t) {
    fill(value);
  }
  void require(bool, const char*) {}
  template <typename Check>
  void check(Check) {}
  void leave_the_rest() {}

  template <typename T>
  void fill(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = below(2) != 0;
    } else if constexpr (Integer<T>) {
      value = static_cast<T>(below(4) == 0 ? random_() : below(5));
    } else if constexpr (Enumeration<T>) {
      value = static_cast<T>(below(static_cast<std::size_t>(last_of(T{})) + 1));
    } else if constexpr (std::is_same_v<T, std::string>) {
      value.assign(1 + below(below(8) == 0 ? 300 : 6), static_cast<char>(random_()));
    } else if constexpr (is_id<T>) {
      for (char& each : value) each = static_cast<char>(random_());
    } else if constexpr (is_optional<T>) {
      if (below(2) == 0) fill(value.emplace());
    } else if constexpr (is_list<T>) {
      value.resize(below(3));
      for (auto& each : value) fill(each);
    } else if constexpr (is_map<T>) {
      for (std::size_t left = below(4); left > 0; --left) {
        typename T::key_type key{};
        fill(key);
        fill(value[key]);
      }
    } else if constexpr (is_variant<T>) {
      fill_kind(value, std::make_index_sequence<std::variant_size_v<T>>());
    } else {
      fields(*this, value);
    }
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }
  template <typename Variant, std::size_t... kinds>
  void fill_kind(Variant& value, std::index_sequence<kinds...>) {
    const std::size_t kind = below(sizeof...(kinds));
    ((kind == kinds ? fill(value.template emplace<kinds>()) : void()), ...);
  }

  std::mt19937_64 random_;
};

// Nothing, if the reader refuses the bytes in words.
template <typename T, typename Read>
std::optional<T> read_if_right(const std::string& bytes, Read read) {
  try {
    return read(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument) << error.what();
    return std::nullopt;
  }
}

// Values come back as they were unless a rule of the struct forbids them, which is seldom enough;
// every beginning of the bytes is refused, and every changed byte gives an error or another value.
template <typename T, typename Write, typename Read>
void expect_codec(Write write, Read read) {
  int right = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    T value{};
    RandomFields(seed).fill(value);
    const std::string bytes = write(value);
    const std::optional<T> again = read_if_right<T>(bytes, read);
    if (!again) continue;
    EXPECT_TRUE(*again == value) << "seed " << seed;
    EXPECT_FALSE(read_if_right<T>(bytes + '\0', read).has_value());
    if (++right > 10) continue;
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(read_if_right<T>(bytes.substr(0, size), read).has_value())
          << "seed " << seed << ", " << size << " bytes";
    }
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      std::string changed = bytes;
      for (const char mask : {'\x01', '\x80', '\xff'}) {
        changed[at] = static_cast<char>(bytes[at] ^ mask);
        const std::optional<T> other = read_if_right<T>(changed, read);
        EXPECT_TRUE(!other || read(write(*other)) == *other);
      }
    }
  }
  EXPECT_GT(right, 10);
}

// Of a type that has a title.
template <typename T>
void expect_codec() {
  expect_codec<T>([](const T& value) { return write(value); },
                  [](const std::string& bytes) { return read<T>(bytes); });
}

}  // namespace tensorbus::wire
