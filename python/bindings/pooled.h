// Tensors of Python's frameworks that live in this process' pool.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "bindings.h"
#include "fabric/core/pool.h"
#include "tensorbus/tensor.h"

namespace tensorbus::python {

// The pool of tensorbus.empty() and of every endpoint. A forked child gets its own.
std::shared_ptr<fabric::Pool> process_pool();

// Dense tensors with whatever their memory last held; a tensor's memory goes back to the pool when
// its last holder is gone. Does not need the GIL.
struct PooledTensor {
  std::shared_ptr<std::byte> memory;  // null if it has no elements
  Dtype dtype = Dtype::float32;
  Shape shape;
  Shape strides;

  TensorView view() const { return {memory.get(), dtype, shape, strides}; }
};
std::vector<PooledTensor> allocate(fabric::Pool& pool, std::span<const TensorForm> forms);
// Tensors in one block, which goes back as one: nothing is lost to rounding each tensor up.
std::vector<PooledTensor> allocate_together(fabric::Pool& pool, std::span<const TensorForm> forms);

enum class Framework { torch, numpy };
// Error(unsupported) for a type that numpy does not have.
nb::object to_python(const PooledTensor& tensor, Framework framework);

}  // namespace tensorbus::python
