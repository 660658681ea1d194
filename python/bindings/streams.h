// Streams of CUDA as Python's frameworks name them, and arrays that say theirs themselves.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "device/core/device.h"
#include "dlpack.h"

namespace tensorbus::python {

// An int, a stream of torch's or something with __cuda_stream__; nothing for None. TypeError for
// anything else.
std::optional<device::Stream> stream_of(nb::handle stream);

// What __cuda_array_interface__ says. `tensor` points into the rest.
struct CudaArray {
  dlpack::Tensor tensor{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // empty: dense
  bool read_only = false;
  std::optional<device::Stream> stream;  // nothing: it need not be waited for
  std::string problem;                   // not empty: why it cannot be taken
};
CudaArray cuda_array_of(const nb::object& object);

}  // namespace tensorbus::python
