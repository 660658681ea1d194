// Values as bytes: flat, little-endian, without names.
#pragma once

#include "wire/field.h"

namespace tensorbus::wire {

// Checks nothing: whoever reads does.
class Writer {
 public:
  template <typename T>
  void operator()(const char*, const T& value) {
    put(value);
  }
  template <Integer T>
  void number(const char*, const T& value, std::int64_t, std::int64_t) {
    put(value);
  }
  void natural(const char*, const std::int64_t& value) { put(value); }
  void text(const char*, const std::string& value, std::size_t) { put(value); }
  template <typename T>
  void bytes(const char*, const T& value) {
    put(value);
  }
  // Cut to what may be read: better than none.
  void message(const char*, const std::string& value, std::size_t most) {
    put(std::string_view(value).substr(0, most));
  }
  template <typename List>
  void list(const char*, const List& value, std::size_t) {
    put(value);
  }
  void require(bool, const char*) {}
  template <typename Check>
  void check(Check) {}
  void leave_the_rest() {}

  void begin(const Title& title) {
    if (title.version == 0) return;
    out_.raw("tensorbus ").raw(title.what).integer(title.version);
  }
  template <typename T>
  void put(const T& value);
  void rest(std::string_view bytes) { out_.raw(bytes); }

  std::string take() && { return std::move(out_).bytes(); }

 private:
  // One byte for most.
  void count(std::size_t count) {
    if (count < 255) {
      out_.integer(static_cast<std::uint8_t>(count));
    } else {
      out_.integer(std::uint8_t{255}).integer(static_cast<std::uint32_t>(count));
    }
  }
  template <typename T>
  void put_list(const std::vector<T>& list);

  Encoder out_;
};

template <typename T>
void Writer::put(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    out_.integer(static_cast<std::uint8_t>(value));
  } else if constexpr (Integer<T>) {
    out_.integer(value);
  } else if constexpr (Enumeration<T>) {
    static_assert(static_cast<std::size_t>(last_of(T{})) < 256);
    out_.integer(static_cast<std::uint8_t>(value));
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    const std::string_view text = value;
    count(text.size());
    out_.raw(text);
  } else if constexpr (is_id<T>) {
    out_.raw({value.data(), value.size()});
  } else if constexpr (is_optional<T>) {
    put(value.has_value());
    if (value) put(*value);
  } else if constexpr (is_list<T>) {
    put_list(value);
  } else if constexpr (is_map<T>) {
    count(value.size());
    for (const auto& [key, each] : value) {
      put(key);
      put(each);
    }
  } else if constexpr (is_variant<T>) {
    names_of_kinds<T>();
    out_.integer(static_cast<std::uint8_t>(value.index()));
    std::visit([this](const auto& each) { this->put(each); }, value);
  } else {
    // One list of fields serves all archives, so it takes its struct as one that may be changed.
    fields(*this, const_cast<T&>(value));
  }
}

template <typename T>
void Writer::put_list(const std::vector<T>& list) {
  count(list.size());
  if constexpr (Integer<T>) {
    out_.raw({reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T)});
  } else {
    for (const T& each : list) put(each);
  }
}

}  // namespace tensorbus::wire
