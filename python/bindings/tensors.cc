#include <vector>

#include "intake.h"

namespace tensorbus::python {
namespace {

nb::tuple tuple_of(std::span<const std::int64_t> values) {
  return nb::tuple(nb::cast(std::vector<std::int64_t>(values.begin(), values.end())));
}

nb::tuple form_of(const TensorList& tensors, std::size_t index) {
  if (index >= tensors.size()) throw nb::index_error();
  const TensorView view = tensors[index];
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(view.data),
                        std::string(to_string(view.dtype)), tuple_of(view.shape),
                        tuple_of(view.strides), view.read_only);
}

}  // namespace

void bind_tensors(nb::module_& module) {
  nb::class_<TensorList>(module, "Tensors", "Tensors as the core sees them; borrows their memory.")
      .def(
          "__init__",
          [](TensorList* place, const nb::list& tensors, const std::optional<nb::list>& names,
             const nb::object& stream) {
            new (place) TensorList(take_in_with_devices(tensors, stream, [&](std::size_t index) {
              return names ? "tensor \"" + nb::cast<std::string>((*names)[index]) + "\""
                           : "tensor " + std::to_string(index);
            }));
          },
          nb::arg("tensors"), nb::arg("names") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig("def __init__(self, tensors: list[object], names: list[str] | None = None, "
                  "stream: object = None) -> None"),
          "`names` are what errors call them; `stream` is the one that those on CUDA devices "
          "were used on, None the current one.")
      .def("__len__", &TensorList::size)
      .def("__getitem__", &form_of, nb::arg("index"),
           nb::sig("def __getitem__(self, index: int) -> "
                   "tuple[int, str, tuple[int, ...], tuple[int, ...], bool]"),
           "(address, dtype, shape, strides, read-only)");
}

}  // namespace tensorbus::python
