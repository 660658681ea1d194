// Copies of whole tensors into others of the same shapes and other types, by a program that is
// compiled once for tensors of the same forms.
#pragma once

#include <span>

#include "copy/crew.h"
#include "fabric/core/region.h"
#include "tensor/view.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus {

// Calls take turns.
class WholeCopy {
 public:
  void run(std::span<const TensorView> from, std::span<const TensorView> to, copy::Crew& crew);

 private:
  fabric::Forms from_;  // what it is compiled for
  fabric::Forms to_;
  plan::Program program_;
};

}  // namespace tensorbus::bus
