#include "base/config.h"
#include "bindings.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ core of tensorbus. Use the tensorbus package; this module is private.";
  module.attr("version") = TENSORBUS_VERSION;
  // A store that lives until the end of the process is no leak, and a library does not print.
  nanobind::set_leak_warnings(false);
  tensorbus::python::bind_errors();
  tensorbus::python::bind_log(module);
  tensorbus::python::bind_observe(module);
  tensorbus::python::bind_store(module);
  tensorbus::python::bind_store_server(module);
  tensorbus::python::bind_layout(module);
  tensorbus::python::bind_plan(module);
  tensorbus::python::bind_tensors(module);
  tensorbus::python::bind_redistribute(module);
  tensorbus::python::bind_pooled(module);
  tensorbus::python::bind_endpoint(module);
  tensorbus::python::bind_bus(module);
  tensorbus::python::bind_link(module);
  tensorbus::python::bind_push_pull(module);
  tensorbus::config::start();
}
