#include "endpoint/read_operation.h"

namespace tensorbus {

void ReadOperation::State::finish(Status outcome) {
  const Lock lock(mutex);
  status = std::move(outcome);
  over.store(true, std::memory_order_release);
  if (event) event->signal();
}

void ReadOperation::State::set_path(std::string_view name) {
  const Lock lock(mutex);
  path = name;
}

std::string ReadOperation::State::taken_path() {
  const Lock lock(mutex);
  return path;
}

void ReadOperation::State::set_received(std::shared_ptr<const Received> tensors) {
  const Lock lock(mutex);
  received = std::move(tensors);
}

bool ReadOperation::done() const noexcept { return state_->over.load(std::memory_order_acquire); }

int ReadOperation::fd() const {
  os::check_not_forked(state_->generation, "read");
  const Lock lock(state_->mutex);
  if (!state_->event) {
    state_->event.emplace();
    if (done()) state_->event->signal();
  }
  return state_->event->get();
}

void ReadOperation::wait(Deadline deadline) const {
  if (!done()) {
    pollfd descriptor{fd(), POLLIN, 0};
    if (!os::wait_ready({&descriptor, 1}, deadline)) {
      throw Error(Code::timeout, "the " + state_->what + " is not over yet");
    }
  }
  const Lock lock(state_->mutex);
  if (!state_->status.ok()) throw Error(state_->status);
}

void ReadOperation::cancel() const noexcept {
  if (done() || os::fork_generation() != state_->generation) return;
  state_->request_cancel();
}

std::shared_ptr<const Received> ReadOperation::received() const {
  const Lock lock(state_->mutex);
  return state_->received;
}

std::string ReadOperation::path() const { return state_->taken_path(); }

}  // namespace tensorbus
