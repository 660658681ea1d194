// Keys, values and timeouts as Python hands them over. Keys and values take any object and are
// converted inside the call, where a wrong type can be named.
#pragma once

#include <string>

#include "gil.h"
#include "tensorbus/deadline.h"

namespace tensorbus::python {

using Timeout = std::optional<double>;  // seconds; nothing: for ever

inline Deadline deadline(Timeout timeout) {
  return timeout ? Deadline::after_seconds(*timeout) : Deadline::never();
}

struct KeyArgument {
  // UTF-8; bytes that are none come and go as surrogates. TypeError if the object is not a str.
  std::string text() const;
  nb::object object;
};

struct ValueArgument {
  // Text as UTF-8, anything bytes-like as it is. TypeError if the object is neither.
  std::string bytes() const;
  nb::object object;
};

// Keys of other programs need not be UTF-8.
nb::object to_str(std::string_view key);
inline nb::bytes to_bytes(std::string_view value) { return nb::bytes(value.data(), value.size()); }

}  // namespace tensorbus::python

namespace nanobind::detail {

template <>
struct type_caster<tensorbus::python::KeyArgument> {
  NB_TYPE_CASTER(tensorbus::python::KeyArgument, const_name("str"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    value.object = borrow(source);
    return true;
  }
};

template <>
struct type_caster<tensorbus::python::ValueArgument> {
  NB_TYPE_CASTER(tensorbus::python::ValueArgument,
                 const_name("str | bytes | bytearray | memoryview"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    value.object = borrow(source);
    return true;
  }
};

}  // namespace nanobind::detail
