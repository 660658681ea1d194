#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

namespace tensorbus::python {

// The items of any sequence, in place if it is a list or a tuple. Whoever runs Python code between
// two looks asks for the size again: that code may shorten a list.
//
// nanobind's macros are functions in an extension that serves several Pythons, whose lists may
// differ.
class Items {
 public:
  Items(nanobind::handle sequence, const char* otherwise)
      : items_(nanobind::steal(PySequence_Fast(sequence.ptr(), otherwise))) {
    if (!items_.is_valid()) throw nanobind::python_error();
    is_list_ = PyList_Check(items_.ptr()) != 0;
  }

  std::size_t size() const {
    PyObject* const items = items_.ptr();
    return static_cast<std::size_t>(is_list_ ? NB_LIST_GET_SIZE(items) : NB_TUPLE_GET_SIZE(items));
  }

  PyObject* operator[](std::size_t at) const {
    PyObject* const items = items_.ptr();
    const auto place = static_cast<Py_ssize_t>(at);
    return is_list_ ? NB_LIST_GET_ITEM(items, place) : NB_TUPLE_GET_ITEM(items, place);
  }

 private:
  nanobind::object items_;
  bool is_list_ = false;
};

}  // namespace tensorbus::python
