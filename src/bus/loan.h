// Memory that a worker lends to its agent for the life of a batch's registration.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fabric/region.h"
#include "tensor/view.h"

namespace tensorbus::bus {

// The agent's sight of the tensors of one registration, in the order of its items. In the worker's
// own process they are plain views; a daemon sees pooled tensors through a mapping of the same
// memfd and private ones through the lender.
class Loan {
 public:
  virtual ~Loan() = default;
  virtual const std::vector<TensorView>& tensors() const noexcept = 0;
  // The worker's own counter of its sends of this batch: it moves past a ticket before it uses its
  // memory again, whatever its agent does.
  virtual fabric::Gate gate() const = 0;
};

}  // namespace tensorbus::bus
