#include "copy/redistribute.h"

#include <nanobind/stl/tuple.h>

#include <tuple>
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

// Boxes of one side: (rank, start) of each tensor, in the order of the list.
using Places = std::vector<std::pair<Rank, Shape>>;

plan::Boxes boxes_of(const TensorList& tensors, const Places& places, copy::Locals& locals) {
  plan::Boxes boxes;
  for (std::size_t at = 0; at < tensors.size(); ++at) {
    const TensorView view = tensors[at];
    const auto& [rank, start] = places.at(at);
    boxes[rank].push_back({start, Shape(view.shape.begin(), view.shape.end())});
    locals[rank].push_back(view);
  }
  return boxes;
}

// Returns what nobody holds, as (target rank, start, shape).
std::vector<std::tuple<Rank, Shape, Shape>> redistribute_boxes(const Shape& shape,
                                                               const nb::list& source_tensors,
                                                               const Places& source_places,
                                                               const nb::list& target_tensors,
                                                               const Places& target_places) {
  const auto name = [](std::size_t index) { return "box " + std::to_string(index); };
  const TensorList from = take_in(source_tensors, name);
  const TensorList to = take_in(target_tensors, name);
  const WithoutGil without_gil;
  copy::Locals source;
  copy::Locals target;
  const plan::Boxes source_boxes = boxes_of(from, source_places, source);
  const plan::Boxes target_boxes = boxes_of(to, target_places, target);
  const plan::Holdings holdings(source_boxes, target_boxes, shape);
  std::vector<std::tuple<Rank, Shape, Shape>> missing;
  for (const auto& [rank, boxes] : target_boxes) {
    for (const plan::Box& box : holdings.missing(rank)) {
      missing.emplace_back(rank, box.start, box.shape);
    }
  }
  if (from.size() == 0 || to.size() == 0) return missing;
  copy::redistribute(plan::Plan(holdings, {from[0].dtype, to[0].dtype}), source, target);
  return missing;
}

}  // namespace

void bind_redistribute(nb::module_& module) {
  module.def("redistribute", &redistribute, nb::arg("source"), nb::arg("source_tensors"),
             nb::arg("target"), nb::arg("target_tensors"),
             nb::sig("def redistribute(source: Layout, source_tensors: dict[int, object], "
                     "target: Layout, target_tensors: dict[int, object]) -> None"),
             "Every rank of a layout has one local tensor. See tensorbus.redistribute.");
  module.def("redistribute_boxes", &redistribute_boxes, nb::arg("shape"), nb::arg("source_tensors"),
             nb::arg("source_places"), nb::arg("target_tensors"), nb::arg("target_places"),
             nb::sig("def redistribute_boxes(shape: collections.abc.Sequence[int], "
                     "source_tensors: list[object], "
                     "source_places: list[tuple[int, list[int]]], target_tensors: list[object], "
                     "target_places: list[tuple[int, list[int]]]) -> "
                     "list[tuple[int, list[int], list[int]]]"),
             "Ranks may have several boxes of the whole. Places are (rank, start); returns what "
             "nobody holds, as\n(target rank, start, shape).");
}

}  // namespace tensorbus::python
