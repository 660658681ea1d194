#include "store_arguments.h"

namespace tensorbus::python {
namespace {

std::string contents(nb::handle bytes) {
  const auto held = nb::borrow<nb::bytes>(bytes);
  return {held.c_str(), held.size()};
}

// The UTF-8 that the object keeps of itself; nothing if it has surrogates.
std::optional<std::string> utf8(nb::handle text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return std::string(bytes, static_cast<std::size_t>(size));
}

std::string encoded(nb::handle text, const char* errors) {
  const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", errors));
  if (!bytes.is_valid()) throw nb::python_error();
  return contents(bytes);
}

[[noreturn]] void refuse(const char* what, nb::handle object) {
  throw nb::type_error(
      (std::string(what) + ", not " + nb::borrow<nb::str>(object.type().attr("__name__")).c_str())
          .c_str());
}

}  // namespace

std::string KeyArgument::text() const {
  if (!PyUnicode_Check(object.ptr())) refuse("a key must be str", object);
  if (auto text = utf8(object)) return std::move(*text);
  return encoded(object, "surrogateescape");
}

std::string ValueArgument::bytes() const {
  if (PyBytes_Check(object.ptr())) return contents(object);
  if (PyUnicode_Check(object.ptr())) {
    if (auto text = utf8(object)) return std::move(*text);
    return encoded(object, "strict");  // raises, saying which character it is
  }
  if (PyObject_CheckBuffer(object.ptr()) == 0) {
    refuse("a value must be str or bytes-like", object);
  }
  const nb::object copy = nb::steal(PyBytes_FromObject(object.ptr()));
  if (!copy.is_valid()) throw nb::python_error();
  return contents(copy);
}

nb::object to_str(std::string_view key) {
  return nb::steal(
      PyUnicode_DecodeUTF8(key.data(), static_cast<Py_ssize_t>(key.size()), "surrogateescape"));
}

}  // namespace tensorbus::python
