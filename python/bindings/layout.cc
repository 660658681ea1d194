#include "tensorbus/layout.h"

#include <nanobind/stl/variant.h>

#include "bindings.h"
#include "slices.h"

namespace tensorbus::python {
namespace {

template <typename Kind>
auto equal() {
  return [](const Kind& self, nb::handle other) {
    return nb::isinstance<Kind>(other) && self == nb::cast<const Kind&>(other);
  };
}

template <typename Kind>
auto hash() {
  return [](const Kind& self) { return nb::hash(nb::cast(to_string(Placement(self)))); };
}

void bind_placements(nb::module_& module) {
  nb::class_<Replicate>(module, "Replicate", "Every rank of the mesh dimension holds the same.")
      .def(nb::init<>())
      .def("__eq__", equal<Replicate>(), nb::arg("other").none())
      .def("__hash__", hash<Replicate>())
      .def("__repr__", [](const Replicate&) { return "Replicate()"; });
  nb::class_<Shard>(module, "Shard",
                    "The tensor dimension `dim` is cut over the mesh dimension into chunks of "
                    "ceil(size / ranks), so that\nlater ranks may get less or nothing. A negative "
                    "`dim` counts from the end.")
      .def(nb::init<std::int64_t>(), nb::arg("dim"))
      .def_ro("dim", &Shard::dim)
      .def("__eq__", equal<Shard>(), nb::arg("other").none())
      .def("__hash__", hash<Shard>())
      .def("__repr__", [](const Shard& self) { return "Shard(" + std::to_string(self.dim) + ")"; });
  nb::class_<StridedShard>(module, "StridedShard",
                           "The dimension is cut into `split_factor` pieces and each of them over "
                           "the mesh dimension: a rank\nholds a part of every piece, one after the "
                           "other. torch's _StridedShard.")
      .def(nb::init<std::int64_t, std::int64_t>(), nb::arg("dim"), nb::arg("split_factor"))
      .def_ro("dim", &StridedShard::dim)
      .def_ro("split_factor", &StridedShard::split_factor)
      .def("__eq__", equal<StridedShard>(), nb::arg("other").none())
      .def("__hash__", hash<StridedShard>())
      .def("__repr__", [](const StridedShard& self) {
        return "StridedShard(" + std::to_string(self.dim) +
               ", split_factor=" + std::to_string(self.split_factor) + ")";
      });
  nb::class_<Partial>(module, "Partial",
                      "Each rank of the mesh dimension holds a value of every element; `reduce_op` "
                      "over them is the tensor:\nsum, avg, max, min or product. For sources only.")
      .def(
          "__init__",
          [](Partial* self, std::string_view op) { new (self) Partial{parse_reduce_op(op)}; },
          nb::arg("reduce_op") = "sum")
      .def_prop_ro("reduce_op", [](const Partial& self) { return to_string(self.op); })
      .def("__eq__", equal<Partial>(), nb::arg("other").none())
      .def("__hash__", hash<Partial>())
      .def("__repr__", [](const Partial& self) {
        return "Partial(\"" + std::string(to_string(self.op)) + "\")";
      });
}

}  // namespace

void bind_layout(nb::module_& module) {
  bind_placements(module);
  nb::class_<Layout>(module, "Layout")
      .def(
          "__init__",
          [](Layout* self, Shape mesh_shape, std::vector<Placement> placements,
             std::optional<std::vector<Rank>> ranks) {
            new (self) Layout(Mesh(std::move(mesh_shape), std::move(ranks)), std::move(placements));
          },
          nb::arg("mesh_shape"), nb::arg("placements"), nb::arg("ranks").none() = nb::none())
      .def_static("parse", &parse_layout, nb::arg("text"),
                  "From the text form SHAPE:P,...[@ranks], for example \"4x2:S0,R\" or "
                  "\"2:P.avg@8,9\"; P is R, S<dim>,\nSS<dim>/<split factor> or P[.op].")
      .def_prop_ro(
          "mesh_shape", [](const Layout& self) { return nb::tuple(nb::cast(self.mesh().shape())); },
          nb::sig("def mesh_shape(self) -> tuple[int, ...]"))
      .def_prop_ro(
          "ranks", [](const Layout& self) { return self.mesh().ranks(); },
          "In row-major order of the mesh.")
      .def_prop_ro("placements", [](const Layout& self) { return self.placements(); })
      .def(
          "local_shape",
          [](const Layout& self, const Shape& shape, Rank rank) {
            return nb::tuple(nb::cast(self.local_shape(shape, rank)));
          },
          nb::arg("shape"), nb::arg("rank"),
          nb::sig("def local_shape(self, shape: collections.abc.Sequence[int], rank: int) -> "
                  "tuple[int, ...]"),
          "The shape of what `rank` holds of a tensor of the global shape `shape`.")
      .def(
          "slices",
          [](const Layout& self, const Shape& shape, Rank rank) {
            nb::list dims;
            const Holding holding = self.holding(shape, rank);
            for (const Intervals& intervals : holding.dims) dims.append(as_slices(intervals));
            return nb::tuple(dims);
          },
          nb::arg("shape"), nb::arg("rank"),
          nb::sig("def slices(self, shape: collections.abc.Sequence[int], rank: int) -> "
                  "tuple[slice | tuple[slice, ...], ...]"),
          "Which indices of each dimension `rank` holds: a slice, so that `tensor[slices]` is the "
          "local tensor, or,\nafter a StridedShard, a tuple of slices whose concatenation it is.")
      .def("__eq__", equal<Layout>(), nb::arg("other").none())
      .def("__hash__", [](const Layout& self) { return nb::hash(nb::cast(to_string(self))); })
      .def("__repr__",
           [](const Layout& self) { return "Layout.parse(\"" + to_string(self) + "\")"; });
}

}  // namespace tensorbus::python
