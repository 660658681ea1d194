#include "tensorbus/plan.h"

#include <nanobind/stl/map.h>

#include "bindings.h"
#include "gil.h"
#include "plan/report/summary.h"
#include "plan/report/svg.h"
#include "slices.h"

namespace tensorbus::python {
namespace {

// One side of a piece, in the form of Layout.slices().
nb::tuple region(const plan::Piece& piece, std::int64_t plan::Span::*side) {
  nb::list dims;
  for (const plan::Spans& spans : piece.dims) {
    Intervals intervals;
    for (const plan::Span& span : spans) {
      intervals.push_back({span.*side, span.*side + span.length});
    }
    dims.append(as_slices(intervals));
  }
  return nb::tuple(dims);
}

plan::Model model_of(const plan::Plan& plan) { return {{"tensor", plan}}; }

double bytes_per_second(std::optional<double> link) { return link.value_or(0) * 1e9; }

void bind_piece(nb::module_& module) {
  nb::class_<plan::Piece>(module, "Piece",
                          "One overlap: what a target rank reads of a tensor from one source, or "
                          "reduces from a group of them.")
      .def_ro("target", &plan::Piece::target)
      .def_prop_ro(
          "sources", [](const plan::Piece& self) { return self.source.ranks; },
          "The rank to copy from, or the ranks to reduce, in the order of the folds.")
      .def_prop_ro(
          "folds",
          [](const plan::Piece& self) {
            std::vector<std::pair<std::string, std::int64_t>> folds;
            for (const plan::Fold& fold : self.source.folds) {
              folds.emplace_back(to_string(fold.op), fold.count);
            }
            return folds;
          },
          "(operation, count): the first reduces each `count` neighbours of `sources` to one "
          "value, the next\neach `count` of those, down to one. Empty for a copy.")
      .def_prop_ro(
          "source_slices",
          [](const plan::Piece& self) { return region(self, &plan::Span::source); },
          nb::sig("def source_slices(self) -> tuple[slice | tuple[slice, ...], ...]"),
          "The region in the source's local tensor, as Layout.slices() gives it.")
      .def_prop_ro(
          "target_slices",
          [](const plan::Piece& self) { return region(self, &plan::Span::target); },
          nb::sig("def target_slices(self) -> tuple[slice | tuple[slice, ...], ...]"),
          "The region in the target's local tensor.")
      .def_prop_ro("elements", &plan::Piece::elements)
      .def("__repr__", [](const plan::Piece& self) {
        std::string sources;
        for (const Rank rank : self.source.ranks) {
          sources += (sources.empty() ? "" : ", ") + std::to_string(rank);
        }
        return "Piece(target=" + std::to_string(self.target) + ", sources=[" + sources +
               "], elements=" + std::to_string(self.elements()) + ")";
      });
}

}  // namespace

void bind_plan(nb::module_& module) {
  using plan::Plan;
  const Release release;
  bind_piece(module);
  nb::class_<Plan>(module, "Plan", "Who reads what of one tensor from whom. Made by plan().")
      .def_prop_ro("source", &Plan::source)
      .def_prop_ro("target", &Plan::target)
      .def_prop_ro(
          "shape", [](const Plan& self) { return nb::tuple(nb::cast(self.shape())); },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro("dtype", [](const Plan& self) { return to_string(self.types().source); })
      .def_prop_ro("target_dtype", [](const Plan& self) { return to_string(self.types().target); })
      .def_prop_ro(
          "wire_dtype", [](const Plan& self) { return to_string(self.wire_dtype()); },
          "The narrower of the two; the source's when it reduces.")
      .def("pieces", &Plan::reads, nb::arg("target_rank"), release, "What a target rank reads.")
      .def("serves", &Plan::serves, nb::arg("source_rank"), release,
           "What a source rank serves: the same pieces, seen from the other side.")
      .def(
          "bytes_between",
          [](const Plan& self) { return plan::summarise(model_of(self)).bytes_between; }, release,
          "{(source rank, target rank): bytes that cross the wire}.")
      .def(
          "summary",
          [](const Plan& self, std::optional<double> link) {
            const plan::Model model = model_of(self);
            return to_table(model, plan::summarise(model), bytes_per_second(link));
          },
          nb::arg("link").none() = nb::none(), release,
          "A table of bytes, peers and pieces per rank. `link` in GB/s per rank adds a time.")
      .def(
          "to_json",
          [](const Plan& self, std::optional<double> link) {
            const plan::Model model = model_of(self);
            return to_json(model, plan::summarise(model), bytes_per_second(link));
          },
          nb::arg("link").none() = nb::none(), release, "The summary and all pieces, as text.")
      .def(
          "to_svg",
          [](const Plan& self) {
            const plan::Model model = model_of(self);
            return to_svg(model, plan::summarise(model));
          },
          release, "A picture of who sends what to whom.")
      .def("__repr__", [](const Plan& self) {
        return "Plan(\"" + to_string(self.source()) + "\" -> \"" + to_string(self.target()) +
               "\", shape=" + to_string(self.shape()) + ")";
      });
  module.def(
      "make_plan",
      [](const Layout& source, const Layout& target, Shape shape, std::string_view dtype,
         std::string_view target_dtype, std::vector<std::string> source_hosts,
         std::vector<std::string> target_hosts) {
        return plan::make(source, target, std::move(shape),
                          {parse_dtype(dtype), parse_dtype(target_dtype)},
                          {std::move(source_hosts), std::move(target_hosts)});
      },
      nb::arg("source"), nb::arg("target"), nb::arg("shape"), nb::arg("dtype"),
      nb::arg("target_dtype"), nb::arg("source_hosts"), nb::arg("target_hosts"));
}

}  // namespace tensorbus::python
