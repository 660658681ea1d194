// Copies of whole tensors into others of the same shapes and other types, by a program that is
// compiled once for tensors of the same forms.
#pragma once

#include <span>

#include "copy/crew.h"
#include "device/core/copier.h"
#include "fabric/core/region.h"
#include "tensor/view.h"
#include "tensorbus/deadline.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus {

// Calls take turns.
class WholeCopy {
 public:
  // Sources may be on devices: as copy_from_devices().
  void run(std::span<const TensorView> from, std::span<const TensorView> to, copy::Crew& crew,
           device::Copiers& copiers, Deadline deadline);

 private:
  void compile_for(std::span<const TensorView> from, std::span<const TensorView> to);

  fabric::Forms from_;  // what it is compiled for
  fabric::Forms to_;
  plan::Program program_;
};

}  // namespace tensorbus::bus
