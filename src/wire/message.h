// A value that travels or is kept: its title, if it has a version, then its fields.
#pragma once

#include "wire/printer.h"
#include "wire/reader.h"
#include "wire/tally.h"
#include "wire/writer.h"

namespace tensorbus::wire {

// The title is declared beside the type:
//   constexpr wire::Title title_of(const Offer*) { return {"offer", 2}; }
template <typename T>
constexpr Title title() {
  return title_of(static_cast<const T*>(nullptr));
}

// Bytes that were made by something else altogether.
class NotThis : public Error {
 public:
  explicit NotThis(const std::string& why) : Error(Code::invalid_argument, why) {}
};

// What is being handled, as Error(invalid_argument) "malformed <what>: <why>".
[[noreturn]] void throw_malformed(std::string_view what);

template <typename T>
std::string write(const T& value, const Title& called = title<T>()) {
  tally.written.fetch_add(1, std::memory_order_relaxed);
  Writer out;
  out.begin(called);
  out.put(value);
  return std::move(out).take();
}

template <typename T>
T parse(std::string_view bytes, const Title& called) try {
  Reader in(bytes);
  in.begin(called);
  T value{};
  in.take(value);
  in.end();
  return value;
} catch (const std::exception&) {
  throw_malformed(called.what);
}

template <typename T>
T read(std::string_view bytes, const Title& called = title<T>()) {
  tally.read.fetch_add(1, std::memory_order_relaxed);
  return parse<T>(bytes, called);
}

// Lines of names and values.
template <typename T>
std::string print(const T& value) {
  Printer out;
  out.put(value);
  return std::move(out).take();
}

// A value inside of a message, as its last field: written in place, and read when the message has
// been read, as a part of it. The sender lends the value until it is written.
template <typename T>
class Sealed {
 public:
  Sealed() = default;
  explicit Sealed(const T& lent) : lent_(&lent) {}
  Sealed(std::string bytes) : bytes_(std::move(bytes)) {}

  const std::string& bytes() const noexcept { return bytes_; }  // as they came
  T open() const { return parse<T>(bytes_, title<T>()); }
  friend bool operator==(const Sealed&, const Sealed&) = default;

  friend void fields(Writer& out, Sealed& sealed) {
    if (sealed.lent_ == nullptr) return out.rest(sealed.bytes_);
    out.begin(title<T>());
    out.put(*sealed.lent_);
  }
  friend void fields(Reader& in, Sealed& sealed) { sealed.bytes_ = in.rest(); }

 private:
  const T* lent_ = nullptr;
  std::string bytes_;
};

}  // namespace tensorbus::wire
