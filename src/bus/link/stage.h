// Memory for copies of tensors that other processes cannot map as they are.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bus/client/whole_copy.h"
#include "copy/crew.h"
#include "fabric/core/pool.h"
#include "tensor/view.h"

namespace tensorbus::bus {

// Memory of the pool in the form of a tensor.
struct PooledPlace {
  std::shared_ptr<std::byte> memory;  // null if it has no elements
  TensorForm form;

  TensorView view() const { return {memory.get(), form.dtype, form.shape, form.strides}; }
};

// Dense places side by side in one block, which goes back as one.
std::vector<PooledPlace> allocate_places(fabric::Pool& pool, std::span<const TensorView> like);

// Of these tensors, those that are not in the pool.
std::vector<bool> outside_of(const fabric::Pool& pool, std::span<const TensorView> tensors);

// Places for those of a registration's tensors that are not in the pool.
class Stage {
 public:
  // `types`: of the places, by the tensor's position; empty: those of the tensors.
  Stage(std::span<const TensorView> tensors, std::span<const Dtype> types, fabric::Pool& pool);

  // Whether readers could want some of what is staged in a narrower type.
  bool can_be_narrowed(std::span<const TensorView> tensors) const;
  // Whether the places are of these types. A narrow place is of no use to a tensor that lies in the
  // pool by now: that tensor is read where it is.
  bool has(std::span<const TensorView> tensors, std::span<const Dtype> types,
           const fabric::Pool& pool) const;

  // What the agent knows: the places, and the tensors that need none.
  std::vector<TensorView> placed(std::span<const TensorView> tensors) const;
  // Copies what has a place, with the threads of the crew; casts. Tensors on devices as
  // copy_from_devices().
  void fill(std::span<const TensorView> tensors, copy::Crew& crew, device::Copiers& copiers,
            Deadline deadline);
  std::size_t size() const noexcept { return staged_.size(); }
  // Of which tensors.
  std::vector<std::size_t> indices() const;
  std::shared_ptr<const void> memory() const { return block_; }
  // The place of a tensor that is where it was, with its contents: from now on the place is the
  // tensor and no copy of it.
  std::optional<PooledPlace> give(const TensorView& tensor);

 private:
  // A tensor that is not in the pool, and its place there.
  struct StagedTensor {
    PooledPlace place;
    const std::byte* data = nullptr;  // of the tensor, when the stage was made
    Shape strides;
  };

  std::map<std::size_t, StagedTensor> staged_;  // by the tensor's position
  WholeCopy casts_;
  std::shared_ptr<std::byte> block_;
};

}  // namespace tensorbus::bus
