// What a user's stream had been given, as an event that is recorded there.
#pragma once

#include "device/cuda/engine.h"

namespace tensorbus::device::cuda {

// An event of the engine's while somebody needs it. Jobs of the engine's own thread hold it, so it
// does not own the engine, whose thread ends after them.
class Recording {
 public:
  // Called on the user's own thread.
  Recording(Engine& engine, device::Stream stream);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  Event event() const noexcept { return event_; }

 private:
  void record(device::Stream stream);

  Engine& engine_;
  Event event_ = nullptr;
};

class EventMoment final : public Moment {
 public:
  EventMoment(std::shared_ptr<Engine> engine, device::Stream stream)
      : engine_(std::move(engine)),
        recording_(std::make_shared<const Recording>(*engine_, stream)) {}

  const std::shared_ptr<const Recording>& recording() const noexcept { return recording_; }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<const Recording> recording_;
};

}  // namespace tensorbus::device::cuda
