// One function per topic; module.cc is their list.
#pragma once

#include <nanobind/nanobind.h>
// Without these casters nanobind compiles and fails at run time: every file gets them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "tensorbus/status.h"

namespace tensorbus::python {

namespace nb = nanobind;

void bind_bus(nb::module_& module);
void bind_endpoint(nb::module_& module);
void bind_errors();
void bind_store(nb::module_& module);
void bind_store_server(nb::module_& module);
void bind_layout(nb::module_& module);
void bind_link(nb::module_& module);
void bind_log(nb::module_& module);
void bind_observe(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_pooled(nb::module_& module);
void bind_push_pull(nb::module_& module);
void bind_redistribute(nb::module_& module);
void bind_tensors(nb::module_& module);

}  // namespace tensorbus::python
