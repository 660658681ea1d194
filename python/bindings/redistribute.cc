#include "copy/redistribute.h"

#include <vector>

#include "bindings.h"
#include "gil.h"
#include "intake.h"

namespace tensorbus::python {
namespace {

// The tensors of one side in the order of its ranks.
TensorList take_in_side(const char* side, const Layout& layout, const nb::dict& tensors) {
  const std::vector<Rank>& ranks = layout.mesh().ranks();
  const auto tensor_of = [side](Rank rank) {
    return std::string(side) + ": the tensor of rank " + std::to_string(rank);
  };
  nb::list ordered;
  for (const Rank rank : ranks) {
    const nb::int_ key(rank);
    PyObject* tensor = PyDict_GetItemWithError(tensors.ptr(), key.ptr());
    if (tensor == nullptr) {
      throw Error(Code::invalid_argument, tensor_of(rank) + " is missing");
    }
    ordered.append(nb::handle(tensor));
  }
  if (tensors.size() != ranks.size()) {
    throw Error(Code::invalid_argument, std::string(side) + ": " + std::to_string(tensors.size()) +
                                            " tensors for a layout of " +
                                            std::to_string(ranks.size()) + " ranks");
  }
  return take_in(ordered, [&](std::size_t index) { return tensor_of(ranks[index]); });
}

void redistribute(const Layout& source, const nb::dict& source_tensors, const Layout& target,
                  const nb::dict& target_tensors) {
  const TensorList from = take_in_side("source", source, source_tensors);
  const TensorList to = take_in_side("target", target, target_tensors);
  const WithoutGil without_gil;
  copy::redistribute(source, views_of(from), target, views_of(to));
}

}  // namespace

void bind_redistribute(nb::module_& module) {
  module.def("redistribute", &redistribute, nb::arg("source"), nb::arg("source_tensors"),
             nb::arg("target"), nb::arg("target_tensors"),
             nb::sig("def redistribute(source: Layout, source_tensors: dict[int, object], "
                     "target: Layout, target_tensors: dict[int, object]) -> None"),
             "Every rank of a layout has one local tensor. See tensorbus.redistribute.");
}

}  // namespace tensorbus::python
