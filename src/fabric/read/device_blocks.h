// The copies of a program between tensors of one device and packed chunks that the device sees,
// too: no byte passes the host.
#pragma once

#include <memory>
#include <vector>

#include "fabric/read/staging.h"
#include "plan/bound_side.h"
#include "tensorbus/plan.h"

namespace tensorbus::fabric {

class DeviceBlocks {
 public:
  // Of the side that is bound. Null if something is cast or reduced, is not on that one device, or
  // comes in rows so short that a device copies them slowly.
  static std::unique_ptr<const DeviceBlocks> of(std::shared_ptr<const plan::Program> program,
                                                plan::BoundSide side, const TensorMemory& memory);

  device::Copier& copier() const noexcept { return *copier_; }
  const plan::Program& program() const noexcept { return *program_; }
  // Between the tensors and the chunk at `wire`, away from the bound side or towards it.
  std::vector<device::Block> of_chunk(std::size_t chunk, std::byte* wire) const;

 private:
  DeviceBlocks(std::shared_ptr<const plan::Program> program, plan::BoundSide side,
               std::vector<std::byte*> first)
      : program_(std::move(program)), side_(side), first_(std::move(first)) {}

  // What speaks against this run.
  bool can_copy(const plan::Run& run, const TensorMemory& memory);
  std::size_t tensor_of(const plan::Run& run) const;

  const std::shared_ptr<const plan::Program> program_;
  const plan::BoundSide side_;
  const std::vector<std::byte*> first_;
  device::Copier* copier_ = nullptr;
};

}  // namespace tensorbus::fabric
