// Reads what a Writer wrote, by the same lists of fields, and believes nothing.
#pragma once

#include <cstring>
#include <utility>

#include "wire/field.h"

namespace tensorbus::wire {

// Whatever is missing, too much, too long or unknown is an Error whose message names the field. A
// list takes memory in proportion to the bytes that came.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : in_(bytes) {}

  template <typename T>
  void operator()(const char* name, T& value) {
    field_ = name;
    take(value);
  }
  template <Integer T>
  void number(const char* name, T& value, std::int64_t least, std::int64_t most) {
    (*this)(name, value);
    if (std::cmp_less(value, least) || std::cmp_greater(value, most)) refuse_number(value);
  }
  void natural(const char* name, std::int64_t& value) { number(name, value, 0, INT64_MAX); }
  void text(const char* name, std::string& value, std::size_t most) {
    field_ = name;
    value = taken_text(most);
  }
  void bytes(const char* name, std::string& value) { text(name, value, UINT32_MAX); }
  void bytes(const char* name, std::optional<std::string>& value) {
    bool there = false;
    (*this)(name, there);
    if (there) bytes(name, value.emplace());
  }
  void message(const char* name, std::string& value, std::size_t most) { text(name, value, most); }
  template <typename List>
  void list(const char* name, List& value, std::size_t most) {
    field_ = name;
    take_items(value, most);
  }
  void require(bool holds, const char* why) {
    if (!holds) throw Error(Code::invalid_argument, why);
  }
  // The check throws what it finds wrong.
  template <typename Check>
  void check(Check check) {
    check();
  }
  // Of a value of another version that could begin to be read.
  void leave_the_rest() { rest(); }

  void begin(const Title& title);
  template <typename T>
  void take(T& value);
  std::string_view rest() { return in_.raw(in_.left()); }
  void end() const { in_.end(); }

 private:
  std::size_t count(std::size_t most, std::size_t bytes_each);
  std::string_view taken_text(std::size_t most) { return in_.raw(count(most, 1)); }
  std::uint8_t taken_byte(std::size_t values);
  template <typename T>
  void take_items(std::vector<T>& list, std::size_t most);
  template <typename K, typename V>
  void take_items(std::map<K, V>& map, std::size_t most);
  template <typename Variant, std::size_t... kinds>
  void take_kind(Variant& value, std::index_sequence<kinds...>);
  template <Integer T>
  [[noreturn]] void refuse_number(T number) const {
    refuse("it cannot be " + std::to_string(number));
  }
  [[noreturn]] void refuse(const std::string& why) const;

  Decoder in_;
  const char* field_ = "";  // that is being read
};

template <typename T>
void Reader::take(T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = taken_byte(2) != 0;
  } else if constexpr (Integer<T>) {
    value = in_.integer<T>();
  } else if constexpr (Enumeration<T>) {
    value = static_cast<T>(taken_byte(static_cast<std::size_t>(last_of(T{})) + 1));
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = taken_text(longest_text);
  } else if constexpr (is_id<T>) {
    std::memcpy(value.data(), in_.raw(value.size()).data(), value.size());
  } else if constexpr (is_optional<T>) {
    value.reset();
    if (taken_byte(2) != 0) take(value.emplace());
  } else if constexpr (is_list<T>) {
    take_items(value, Integer<typename T::value_type> ? most_numbers : most_items);
  } else if constexpr (is_map<T>) {
    take_items(value, most_items);
  } else if constexpr (is_variant<T>) {
    names_of_kinds<T>();
    take_kind(value, std::make_index_sequence<std::variant_size_v<T>>());
  } else {
    fields(*this, value);
  }
}

template <typename T>
void Reader::take_items(std::vector<T>& list, std::size_t most) {
  list.clear();
  if constexpr (Integer<T>) {
    list.resize(count(most, sizeof(T)));
    const std::string_view raw = in_.raw(list.size() * sizeof(T));
    if (!raw.empty()) std::memcpy(list.data(), raw.data(), raw.size());
  } else {
    for (std::size_t left = count(most, 1); left > 0; --left) take(list.emplace_back());
  }
}

template <typename K, typename V>
void Reader::take_items(std::map<K, V>& map, std::size_t most) {
  map.clear();
  for (std::size_t left = count(most, 1); left > 0; --left) {
    K key{};
    take(key);
    const auto [at, added] = map.try_emplace(std::move(key));
    if (!added) refuse("a key comes twice");
    take(at->second);
  }
}

template <typename Variant, std::size_t... kinds>
void Reader::take_kind(Variant& value, std::index_sequence<kinds...>) {
  const std::size_t kind = taken_byte(sizeof...(kinds));
  ((kind == kinds ? take(value.template emplace<kinds>()) : void()), ...);
}

}  // namespace tensorbus::wire
