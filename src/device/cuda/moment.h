// What a user's stream had been given, as an event that is recorded there.
#pragma once

#include "device/cuda/engine.h"

namespace tensorbus::device::cuda {

class EventMoment final : public Moment {
 public:
  // Called on the user's own thread.
  EventMoment(std::shared_ptr<Engine> engine, device::Stream stream);
  ~EventMoment() override;

  Event event() const noexcept { return event_; }

 private:
  void record(device::Stream stream);

  const std::shared_ptr<Engine> engine_;
  Event event_ = nullptr;
};

}  // namespace tensorbus::device::cuda
