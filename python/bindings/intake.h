// Python's tensors as borrowed views: torch through its C exchange API, everything else that has
// __dlpack__ through that, or through __cuda_array_interface__.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bindings.h"
#include "device/core/moments.h"
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
  // What the streams of the thread that took the tensors in had been given then, one for each
  // device that has a tensor.
  const device::Moments& moments() const noexcept { return moments_; }
  bool on_devices() const noexcept { return on_devices_; }

 private:
  friend class Intake;
  struct TakenTensor {
    std::byte* data;
    Dtype dtype;
    bool read_only;
    std::int32_t device;
    std::uint32_t dims;
    std::size_t first;  // where shape, then strides begin in extents_
  };
  std::vector<TakenTensor> tensors_;
  // One vector for all: two allocations per tensor would cost more than the tensors.
  std::vector<std::int64_t> extents_;
  device::Moments moments_;
  bool on_devices_ = false;
};

std::vector<TensorView> views_of(const TensorList& tensors);

// How DLPack calls a type.
dlpack::DataType dlpack_type(Dtype dtype);
// A type's function table, or null if the type has none. Lives as long as the type's framework.
const dlpack::ExchangeApi* exchange_api_of(PyTypeObject* type);

using NameOf = std::function<std::string(std::size_t)>;

// Reads each item of a list or tuple once. `name` says what to call item i in the ValueError for
// one that is no tensor, not in the memory of the CPU, or of a type that we do not have.
TensorList take_in(nb::handle sequence, const NameOf& name);
// The same of tensors that may be on CUDA devices. `stream`: on which the caller has worked on
// them, an int, a stream of torch's or something with __cuda_stream__; None: the current one of the
// calling thread, as each tensor's framework says.
TensorList take_in_with_devices(nb::handle sequence, nb::handle stream, const NameOf& name);

}  // namespace tensorbus::python
