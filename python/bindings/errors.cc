// tensorbus::Error becomes the Python exception that callers expect for its code, and a blocked
// call asks the interpreter whether Ctrl-C was pressed.
#include <array>

#include "base/interrupt.h"
#include "bindings.h"

namespace tensorbus::python {
namespace {

// Owned for the life of the process, like the built-in exceptions they stand beside.
struct Exceptions {
  PyObject* unsupported = nullptr;
  PyObject* denied = nullptr;
  PyObject* peer_lost = nullptr;
  PyObject* queue_full = nullptr;
  PyObject* cancelled = nullptr;
};
Exceptions exceptions;

PyObject* exception_for(Code code) {
  switch (code) {
    case Code::invalid_argument:
      return PyExc_ValueError;
    case Code::timeout:
      return PyExc_TimeoutError;
    case Code::unreachable:
      return PyExc_ConnectionError;
    case Code::denied:
      return exceptions.denied;
    case Code::unsupported:
      return exceptions.unsupported;
    case Code::peer_lost:
      return exceptions.peer_lost;
    case Code::queue_full:
      return exceptions.queue_full;
    case Code::cancelled:
      return exceptions.cancelled;
    case Code::interrupted:
      return PyExc_KeyboardInterrupt;
    case Code::ok:
    case Code::failed:
      break;
  }
  return PyExc_RuntimeError;
}

void set_python_error(const Status& status) {
  // The interrupt check has already set the exception that the signal handler raised.
  if (status.code == Code::interrupted && PyErr_Occurred() != nullptr) return;
  PyErr_SetString(exception_for(status.code), status.message.c_str());
}

// PyErr_CheckSignals acts only on the main thread, so other threads skip the GIL.
bool interrupted() {
  if (Py_IsInitialized() == 0) return false;
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

PyObject* define(nb::module_& module, const char* name, const char* doc, nb::handle base) {
  const std::string full_name = std::string("tensorbus.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(full_name.c_str(), doc, base.ptr(), nullptr);
  if (type == nullptr) throw nb::python_error();
  module.attr(name) = nb::borrow(type);
  return type;
}

}  // namespace

void raise(const Status& status) {
  set_python_error(status);
  throw nb::python_error();
}

void bind_errors(nb::module_& module) {
  exceptions.unsupported =
      define(module, "UnsupportedError", "This backend or build cannot do what was asked.",
             PyExc_RuntimeError);
  exceptions.denied = define(module, "AuthenticationError",
                             "The other side refused our credentials.", PyExc_ConnectionError);
  exceptions.peer_lost =
      define(module, "PeerLostError",
             "A process that the call needed is gone; the message names it.", PyExc_RuntimeError);
  exceptions.queue_full =
      define(module, "QueueFullError", "A bounded queue stayed full until the deadline.",
             PyExc_RuntimeError);
  exceptions.cancelled = define(module, "CancelledError",
                                "The call was ended by close() or cancel().", PyExc_RuntimeError);

  nb::register_exception_translator([](const std::exception_ptr& caught, void*) {
    try {
      std::rethrow_exception(caught);
    } catch (const Error& error) {
      set_python_error(error.status());
    }
  });
  set_interrupt_check(&interrupted);
}

}  // namespace tensorbus::python
