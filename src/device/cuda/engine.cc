#include "device/cuda/engine.h"

#include "base/log.h"
#include "os/process/fork.h"

namespace tensorbus::device::cuda {

Event Events::take() {
  {
    const Lock lock(mutex_);
    if (!free_.empty()) {
      const Event event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  Event event = nullptr;
  calls_(&Functions::cuEventCreate, &event, event_disable_timing);
  return event;
}

void Events::give_back(Event event) {
  const Lock lock(mutex_);
  free_.push_back(event);
}

void Events::clear() {
  const Lock lock(mutex_);
  for (const Event event : free_) calls_(&Functions::cuEventDestroy, event);
  free_.clear();
}

Engine::Engine(const Functions& functions, Id id, std::size_t pinned_bytes)
    : calls_(functions, id),
      generation_(os::fork_generation()),
      events_(calls_),
      budget_(pinned_bytes) {
  Device device = 0;
  calls_(&Functions::cuDeviceGet, &device, id.ordinal);
  int pitch = 0;
  calls_(&Functions::cuDeviceGetAttribute, &pitch, max_pitch, device);
  longest_pitch_ = static_cast<std::size_t>(pitch);
  calls_(&Functions::cuDevicePrimaryCtxRetain, &context_, device);
  thread_ = std::make_unique<Thread>(calls_, context_);
}

Engine::~Engine() {
  if (is_forked()) {
    static_cast<void>(thread_.release());
    return;
  }
  thread_.reset();
  try {
    {
      const Visit visit(*this);
      events_.clear();
    }
    calls_(&Functions::cuDevicePrimaryCtxRelease, calls_.id().ordinal);
  } catch (const Error& error) {
    log::debug("{}", error.what());
  }
}

bool Engine::is_forked() const noexcept { return os::fork_generation() != generation_; }

void Engine::check_not_forked() const { cuda::check_not_forked(generation_, calls_.id()); }

void check_not_forked(unsigned generation, Id id) {
  if (os::fork_generation() == generation) return;
  throw Error(Code::failed,
              to_string(id) +
                  " was used before a fork: nothing of CUDA works in the child; start "
                  "such processes with \"spawn\"");
}

Visit::Visit(Engine& engine) : calls_(engine.calls()) {
  calls_(&Functions::cuCtxPushCurrent, engine.context());
  try {
    calls_(&Functions::cuThreadExchangeStreamCaptureMode, &mode_);
  } catch (...) {
    calls_.restore(&Functions::cuCtxPopCurrent, nullptr);
    throw;
  }
}

Visit::~Visit() {
  calls_.restore(&Functions::cuThreadExchangeStreamCaptureMode, &mode_);
  calls_.restore(&Functions::cuCtxPopCurrent, nullptr);
}

}  // namespace tensorbus::device::cuda
