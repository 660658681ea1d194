// Python's tensors as borrowed views: torch through its C exchange API, everything else that has
// __dlpack__ through that.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bindings.h"
#include "dlpack.h"
#include "tensor/view.h"

namespace tensorbus::python {

// Views of tensors; valid while the Python objects live and are not resized.
class TensorList {
 public:
  std::size_t size() const noexcept { return tensors_.size(); }
  TensorView operator[](std::size_t index) const;
  // Whether a tensor lies where it lies in the other list, in the same form.
  bool is_same(std::size_t index, const TensorList& other) const;

 private:
  friend class Intake;
  struct TakenTensor {
    std::byte* data;
    Dtype dtype;
    bool read_only;
    std::uint32_t dims;
    std::size_t first;  // where shape, then strides begin in extents_
  };
  std::vector<TakenTensor> tensors_;
  // One vector for all: two allocations per tensor would cost more than the tensors.
  std::vector<std::int64_t> extents_;
};

std::vector<TensorView> views_of(const TensorList& tensors);

// How DLPack calls a type.
dlpack::DataType dlpack_type(Dtype dtype);
// A type's function table, or null if the type has none. Lives as long as the type's framework.
const dlpack::ExchangeApi* exchange_api_of(PyTypeObject* type);

// Reads each item of a list or tuple once. `name` says what to call item i in the ValueError for
// one that is no tensor, not in the memory of the CPU, or of a type that we do not have.
TensorList take_in(nb::handle sequence, const std::function<std::string(std::size_t)>& name);

}  // namespace tensorbus::python
