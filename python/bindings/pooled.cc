#include "pooled.h"
#include "base/mutex.h"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "dlpack.h"
#include "gil.h"
#include "intake.h"
#include "os/process/fork.h"
#include "tensorbus/plan.h"

namespace tensorbus::python {
namespace {

// What a framework's tensor holds on to.
struct Lent {
  dlpack::VersionedTensor managed;
  PooledTensor tensor;
};

dlpack::VersionedTensor* lend(const PooledTensor& tensor) {
  auto* lent = new Lent{{}, tensor};
  lent->managed.version = {dlpack::major_version, 0};
  lent->managed.context = lent;
  lent->managed.deleter = [](dlpack::VersionedTensor* managed) {
    delete static_cast<Lent*>(managed->context);
  };
  lent->managed.tensor = {lent->tensor.memory.get(),
                          {dlpack::cpu, 0},
                          static_cast<std::int32_t>(tensor.shape.size()),
                          dlpack_type(tensor.dtype),
                          lent->tensor.shape.data(),
                          lent->tensor.strides.data(),
                          0};
  return &lent->managed;
}

constexpr const char* capsule_name = "dltensor_versioned";

nb::object capsule_of(const PooledTensor& tensor) {
  // Whoever takes the tensor renames the capsule.
  return nb::steal(PyCapsule_New(lend(tensor), capsule_name, [](PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, capsule_name) == 0) return;
    auto* managed =
        static_cast<dlpack::VersionedTensor*>(PyCapsule_GetPointer(capsule, capsule_name));
    managed->deleter(managed);
  }));
}

// With an error that says what to install.
nb::module_ import_torch() {
  try {
    return nb::module_::import_("torch");
  } catch (nb::python_error&) {
    nb::module_::import_("tensorbus.extras").attr("need")("torch", "a tensor of torch");
    throw;
  }
}

nb::object to_torch(const PooledTensor& tensor) {
  const nb::module_ torch = import_torch();
  const nb::object type = torch.attr("Tensor");
  const dlpack::ExchangeApi* api = exchange_api_of(reinterpret_cast<PyTypeObject*>(type.ptr()));
  if (api == nullptr || api->managed_to_object == nullptr) {
    return torch.attr("from_dlpack")(capsule_of(tensor));
  }
  dlpack::VersionedTensor* const managed = lend(tensor);
  void* result = nullptr;
  if (api->managed_to_object(managed, &result) != 0) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(static_cast<PyObject*>(result));
}

nb::object to_numpy(const PooledTensor& tensor) {
  const dlpack::DataType type = dlpack_type(tensor.dtype);
  constexpr std::uint8_t last_plain_code = 6;  // integers, floats, complex numbers, bool
  constexpr std::uint8_t bfloat_code = 4;
  if (type.code > last_plain_code || type.code == bfloat_code || type.lanes != 1 ||
      tensor.dtype == Dtype::complex32) {
    throw Error(Code::unsupported, "numpy has no " + std::string(to_string(tensor.dtype)) +
                                       "; import torch, or give the targets");
  }
  return nb::module_::import_("numpy").attr("from_dlpack")(nb::cast(tensor));
}

std::size_t dense_bytes(const TensorForm& form) {
  return item_bytes(form.dtype) * static_cast<std::size_t>(element_count(form.shape));
}

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

nb::list empty(const std::vector<std::tuple<Shape, std::string, bool>>& wanted) {
  std::vector<TensorForm> forms;
  for (const auto& [shape, dtype, torch] : wanted) {
    for (const std::int64_t length : shape) {
      if (length < 0) throw Error(Code::invalid_argument, "a shape has a negative length");
    }
    forms.push_back({parse_dtype(dtype), shape, {}});
  }
  std::vector<PooledTensor> tensors;
  {
    const WithoutGil without_gil;
    tensors = allocate_together(*process_pool(), forms);
  }
  nb::list made;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    made.append(
        to_python(tensors[i], std::get<2>(wanted[i]) ? Framework::torch : Framework::numpy));
  }
  return made;
}

ProcessMutex pool_mutex;

}  // namespace

std::shared_ptr<fabric::Pool> process_pool() {
  // Never destroyed: tensors live on.
  static std::shared_ptr<fabric::Pool>* pool GUARDED_BY(pool_mutex) = nullptr;
  static unsigned generation GUARDED_BY(pool_mutex) = 0;
  const Lock lock(pool_mutex);
  if (pool == nullptr || generation != os::fork_generation()) {
    pool = new std::shared_ptr<fabric::Pool>(std::make_shared<fabric::Pool>());
    generation = os::fork_generation();
  }
  return *pool;
}

std::vector<PooledTensor> allocate(fabric::Pool& pool, std::span<const TensorForm> forms) {
  std::vector<PooledTensor> tensors;
  tensors.reserve(forms.size());
  for (const TensorForm& form : forms) {
    const std::size_t bytes = dense_bytes(form);
    tensors.push_back({bytes == 0 ? nullptr : pool.allocate(bytes), form.dtype, form.shape,
                       plan::contiguous_strides(form.shape)});
  }
  return tensors;
}

std::vector<PooledTensor> allocate_together(fabric::Pool& pool, std::span<const TensorForm> forms) {
  constexpr std::size_t alignment = 64;
  std::size_t total = 0;
  for (const TensorForm& form : forms) total += rounded_up(dense_bytes(form), alignment);
  const std::shared_ptr<std::byte> block = total == 0 ? nullptr : pool.allocate(total);
  std::vector<PooledTensor> tensors;
  tensors.reserve(forms.size());
  std::byte* at = block.get();
  for (const TensorForm& form : forms) {
    const std::size_t bytes = dense_bytes(form);
    tensors.push_back({bytes == 0 ? nullptr : std::shared_ptr<std::byte>(block, at), form.dtype,
                       form.shape, plan::contiguous_strides(form.shape)});
    at += rounded_up(bytes, alignment);
  }
  return tensors;
}

nb::object to_python(const PooledTensor& tensor, Framework framework) {
  return framework == Framework::torch ? to_torch(tensor) : to_numpy(tensor);
}

void bind_pooled(nb::module_& module) {
  nb::class_<PooledTensor>(module, "PooledTensor", "Memory of the pool on its way into numpy.")
      .def(
          "__dlpack__",
          [](const PooledTensor& tensor, const nb::kwargs&) { return capsule_of(tensor); },
          nb::sig("def __dlpack__(self, **kwargs: object) -> object"))
      .def(
          "__dlpack_device__", [](const PooledTensor&) { return nb::make_tuple(dlpack::cpu, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));

  module.def("empty", &empty, nb::arg("wanted"),
             nb::sig("def empty(wanted: list[tuple[list[int], str, bool]]) -> list[object]"),
             "Tensors side by side in one block: shape, type, whether it is to be torch's.");
  module.def(
      "is_pooled",
      [](nb::handle tensor) {
        const TensorList list =
            take_in(nb::make_tuple(tensor), [](std::size_t) { return std::string("the tensor"); });
        const WithoutGil without_gil;
        return list[0].data != nullptr && process_pool()->find(list[0].data, 1).has_value();
      },
      nb::arg("tensor").none(), nb::sig("def is_pooled(tensor: object) -> bool"),
      "Whether a tensor's first element lies in this process' pool.");
  module.def(
      "pool_use",
      [] {
        const PoolUse use = call_without_gil([] { return process_pool()->use(); });
        return nb::make_tuple(use.reserved_bytes, use.lent_bytes);
      },
      nb::sig("def pool_use() -> tuple[int, int]"),
      "Bytes that the pool has from the operating system, and bytes that tensors hold of it.");
  module.def(
      "trim_pool", [] { process_pool()->trim(); }, Release(),
      "Gives memory that no tensor uses back to the operating system.");
}

}  // namespace tensorbus::python
