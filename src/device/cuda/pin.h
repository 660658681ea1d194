// Host memory that the driver has locked in place.
#pragma once

#include <atomic>

#include "device/cuda/engine.h"

namespace tensorbus::device::cuda {

class RegisteredPin final : public Pin {
 public:
  RegisteredPin(std::shared_ptr<Engine> engine, HostRange range);
  ~RegisteredPin() override;

  State state() const override { return shared_->state; }

  struct Shared {
    Engine& engine;
    HostRange range;
    bool in_budget = false;  // takes of it
    bool is_ours = false;    // registered by us, and by us to be let go
    std::atomic<State> state = State::asked_for;
  };

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace tensorbus::device::cuda
