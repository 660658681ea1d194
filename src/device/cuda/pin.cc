#include "device/cuda/pin.h"

#include <fmt/format.h>

#include "base/log.h"

namespace tensorbus::device::cuda {
namespace {

using SharedPin = std::shared_ptr<RegisteredPin::Shared>;

void warn_of_pageable(const RegisteredPin::Shared& pin, const std::string& why) {
  static std::atomic<bool> warned = false;
  const auto level = warned.exchange(true) ? log::Level::debug : log::Level::warn;
  log::at(level,
          "{}: {} bytes of host memory stay pageable, so copies from and to them are slow ({})",
          to_string(pin.engine.calls().id()), pin.range.bytes.size(), why);
}

class PinJob final : public Job {
 public:
  explicit PinJob(SharedPin pin) : pin_(std::move(pin)) {}

  void start() override {
    HostRange& range = pin_->range;
    pin_->in_budget = range.in_budget && pin_->engine.budget().take(range.bytes.size());
    if (range.in_budget && !pin_->in_budget) {
      return stay_pageable("the budget of pinned memory is spent");
    }
    const unsigned flags = register_portable | (range.read_only ? register_read_only : 0);
    const auto size = range.bytes.size();
    Calls& calls = pin_->engine.calls();
    const Result result = calls.ask(&Functions::cuMemHostRegister,
                                    static_cast<void*>(range.bytes.data()), size, flags);
    pin_->is_ours = result == success;
    // Registered by the user, or for another device: pinned for all, and not ours to let go.
    if (pin_->is_ours || result == host_memory_already_registered) {
      pin_->state = Pin::State::pinned;
    } else {
      stay_pageable(calls.text_of(result));
    }
  }
  void end(const Status& status) noexcept override {
    if (!status.ok()) pin_->state = Pin::State::pageable;
  }

 private:
  void stay_pageable(const std::string& why) {
    pin_->state = Pin::State::pageable;
    warn_of_pageable(*pin_, why);
  }

  const SharedPin pin_;
};

class UnpinJob final : public Job {
 public:
  explicit UnpinJob(SharedPin pin) : pin_(std::move(pin)) {}

  void start() override {
    if (!pin_->is_ours) return;
    pin_->engine.calls()(&Functions::cuMemHostUnregister,
                         static_cast<void*>(pin_->range.bytes.data()));
  }
  void end(const Status& status) noexcept override {
    if (!status.ok()) log::debug("{}", status.message);
    if (pin_->in_budget) pin_->engine.budget().give_back(pin_->range.bytes.size());
    pin_->range.keeper.reset();
  }

 private:
  const SharedPin pin_;
};

}  // namespace

RegisteredPin::RegisteredPin(std::shared_ptr<Engine> engine, HostRange range)
    : engine_(std::move(engine)), shared_(new Shared{*engine_, std::move(range)}) {
  engine_->check_not_forked();
  engine_->thread().post(std::make_unique<PinJob>(shared_));
}

RegisteredPin::~RegisteredPin() {
  if (!engine_->is_forked()) engine_->thread().post(std::make_unique<UnpinJob>(shared_));
}

}  // namespace tensorbus::device::cuda
