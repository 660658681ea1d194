#include "device/core/mark.h"

#include <condition_variable>
#include <optional>

#include "base/mutex.h"
#include "base/waiting.h"

namespace tensorbus::device {

struct Mark::State {
  Mutex mutex;
  std::condition_variable changed;
  std::optional<Status> status GUARDED_BY(mutex);

  bool is_over() REQUIRES(mutex) {
    if (status && !status->ok()) throw Error(*status);
    return status.has_value();
  }
};

Mark::Mark() : state_(std::make_shared<State>()) {}

bool Mark::passed() const {
  State& state = *state_;
  const Lock lock(state.mutex);
  return state.is_over();
}

bool Mark::wait(Deadline deadline) const {
  State& state = *state_;
  Lock lock(state.mutex);
  return tensorbus::wait(lock, state.changed, deadline,
                         [&]() REQUIRES(state.mutex) { return state.is_over(); });
}

bool Mark::wait_for_end(Deadline deadline) const noexcept {
  State& state = *state_;
  Lock lock(state.mutex);
  Waiting waiting(lock, deadline, Waiting::CtrlC::ignored);
  while (!state.status && waiting.sleep(state.changed)) {
  }
  return state.status.has_value();
}

void Mark::end(const Status& status) const {
  State& state = *state_;
  {
    const Lock lock(state.mutex);
    state.status = status;
  }
  state.changed.notify_all();
}

}  // namespace tensorbus::device
