// tensorbus::Error becomes the Python exception that callers expect for its code, and a blocked
// call asks the interpreter whether Ctrl-C was pressed.
#include <unistd.h>

#include "base/interrupt.h"
#include "bindings.h"
#include "bus_client.h"
#include "gil.h"

namespace tensorbus::python {
namespace {

// Our own exceptions are Python classes of the package; found when needed, because it imports us.
nb::object package_exception(const char* name) {
  return nb::module_::import_("tensorbus.errors").attr(name);
}

nb::object exception_for(Code code) {
  switch (code) {
    case Code::invalid_argument:
      return nb::borrow(PyExc_ValueError);
    case Code::timeout:
      return nb::borrow(PyExc_TimeoutError);
    case Code::unreachable:
      return nb::borrow(PyExc_ConnectionError);
    case Code::denied:
      return package_exception("AuthenticationError");
    case Code::unsupported:
      return package_exception("UnsupportedError");
    case Code::peer_lost:
      return package_exception("PeerLostError");
    case Code::queue_full:
      return package_exception("QueueFullError");
    case Code::cancelled:
      return package_exception("CancelledError");
    case Code::interrupted:
      return nb::borrow(PyExc_KeyboardInterrupt);
    case Code::withdrawn:
      return package_exception("WithdrawnError");
    case Code::ok:
    case Code::failed:
      break;
  }
  return nb::borrow(PyExc_RuntimeError);
}

nb::object exception_for(const bus::Outcome& outcome) {
  switch (outcome.absence) {
    case bus::Absence::gone:
      return package_exception("VersionGoneError");
    case bus::Absence::ended:
      return package_exception("EndOfStreamError");
    case bus::Absence::none:
      break;
  }
  return exception_for(outcome.status.code);
}

void set_python_error(const Status& status) {
  // The interrupt check has already set the exception that the signal handler raised.
  if (status.code == Code::interrupted && PyErr_Occurred() != nullptr) return;
  PyErr_SetString(exception_for(status.code).ptr(), status.message.c_str());
}

// With the readers of a send and the ranks that were lost.
void set_python_error(const bus::CommandError& error) {
  const bus::Outcome& outcome = error.outcome();
  nb::object exception = exception_for(outcome)(outcome.status.message);
  exception.attr("readers") = readers_of(outcome.readers);
  exception.attr("ranks") = nb::tuple(nb::cast(outcome.lost));
  exception.attr("stale") = outcome.stale;
  exception.attr("version") = outcome.version;
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
}

// True with a Python exception set. Acts on the main thread only, as Python's signals do; others do
// not ask, because for that they would have to wait for the interpreter in every call.
bool interrupted() {
  if (::gettid() != ::getpid() || Py_IsInitialized() == 0) return false;
  const WithGil gil;
  let_go_of_the_buried();
  return PyErr_CheckSignals() != 0;
}

}  // namespace

void bind_errors() {
  nb::register_exception_translator([](const std::exception_ptr& caught, void*) {
    try {
      std::rethrow_exception(caught);
    } catch (const bus::CommandError& error) {
      set_python_error(error);
    } catch (const Error& error) {
      set_python_error(error.status());
    }
  });
  set_interrupt_check(&interrupted);
}

}  // namespace tensorbus::python
