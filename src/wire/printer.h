// Values for people: a line for each field, by the same lists of fields.
#pragma once

#include "base/secret.h"
#include "wire/field.h"

namespace tensorbus::wire {

// In quotes; what would move a terminal's cursor is escaped.
std::string in_quotes(std::string_view text);
// The bytes in quotes if they are readable, else as hexadecimal digits.
std::string readable(std::string_view bytes);

class Printer {
 public:
  template <typename T>
  void operator()(const char* name, const T& value) {
    entry(name, value);
  }
  template <Integer T>
  void number(const char* name, const T& value, std::int64_t, std::int64_t) {
    entry(name, value);
  }
  void natural(const char* name, const std::int64_t& value) { entry(name, value); }
  void text(const char* name, const std::string& value, std::size_t) { entry(name, value); }
  void bytes(const char* name, const std::string& value) { line(name, readable(value)); }
  void message(const char* name, const std::string& value, std::size_t) { entry(name, value); }
  template <typename List>
  void list(const char* name, const List& value, std::size_t) {
    entry(name, value);
  }
  void require(bool, const char*) {}
  template <typename Check>
  void check(Check) {}
  void leave_the_rest() {}

  template <typename T>
  void put(const T& value);
  void line(std::string_view name, std::string_view value = {});
  // Whatever `put_more` puts belongs to the last line.
  template <typename Put>
  void indented(Put put_more) {
    depth_ += 1;
    put_more();
    depth_ -= 1;
  }

  std::string take() && { return std::move(out_); }

 private:
  template <typename T>
  static constexpr bool is_plain =
      std::is_arithmetic_v<T> || Enumeration<T> || std::is_same_v<T, std::string> || is_id<T>;
  template <typename T>
  static std::string plain(const T& value);
  template <typename T>
  void entry(std::string_view name, const T& value);
  template <typename T>
  void entry_of_list(std::string_view name, const std::vector<T>& list);
  template <typename T>
  void under(const T& value) {
    indented([&] { put(value); });
  }

  std::string out_;
  std::size_t depth_ = 0;
};

template <typename T>
std::string Printer::plain(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "yes" : "no";
  } else if constexpr (Enumeration<T>) {
    return std::string(to_string(value));
  } else if constexpr (is_id<T>) {
    return to_hex({value.data(), value.size()});
  } else if constexpr (std::is_same_v<T, std::string>) {
    return in_quotes(value);
  } else {
    return std::to_string(value);
  }
}

template <typename T>
void Printer::entry(std::string_view name, const T& value) {
  if constexpr (is_plain<T>) {
    line(name, plain(value));
  } else if constexpr (is_optional<T>) {
    value ? entry(name, *value) : line(name, "none");
  } else if constexpr (is_list<T>) {
    entry_of_list(name, value);
  } else if constexpr (is_variant<T>) {
    line(name, names_of_kinds<T>()[value.index()]);
    std::visit([this](const auto& each) { this->under(each); }, value);
  } else if constexpr (is_map<T>) {
    line(name, value.empty() ? "none" : "");
    under(value);
  } else {
    line(name);
    under(value);
  }
}

template <typename T>
void Printer::entry_of_list(std::string_view name, const std::vector<T>& list) {
  if constexpr (is_plain<T>) {
    std::string items;
    for (const T& each : list) items += (items.empty() ? "" : ", ") + plain(each);
    line(name, "[" + items + "]");
  } else {
    line(name, list.empty() ? "none" : "");
    under(list);
  }
}

template <typename T>
void Printer::put(const T& value) {
  if constexpr (is_list<T>) {
    for (std::size_t at = 0; at < value.size(); ++at) entry(std::to_string(at), value[at]);
  } else if constexpr (is_map<T>) {
    for (const auto& [key, each] : value) entry(plain(key), each);
  } else if constexpr (is_variant<T>) {
    entry("kind", value);
  } else {
    fields(*this, const_cast<T&>(value));
  }
}

}  // namespace tensorbus::wire
