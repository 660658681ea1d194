#include "endpoint/read_operation.h"

namespace tensorbus {

void ReadOperation::State::finish(Status outcome) {
  const std::lock_guard lock(mutex);
  status = std::move(outcome);
  over.store(true, std::memory_order_release);
  if (event) event->signal();
}

void ReadOperation::State::set_path(std::string_view name) {
  const std::lock_guard lock(mutex);
  path = name;
}

void ReadOperation::State::set_received(std::shared_ptr<const Received> tensors) {
  const std::lock_guard lock(mutex);
  received = std::move(tensors);
}

bool ReadOperation::done() const noexcept { return state_->over.load(std::memory_order_acquire); }

int ReadOperation::fd() const {
  os::check_not_forked(state_->generation, "read");
  const std::lock_guard lock(state_->mutex);
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
  const std::lock_guard lock(state_->mutex);
  if (!state_->status.ok()) throw Error(state_->status);
}

void ReadOperation::cancel() const noexcept {
  if (done() || os::fork_generation() != state_->generation) return;
  state_->request_cancel();
}

std::shared_ptr<const Received> ReadOperation::received() const {
  const std::lock_guard lock(state_->mutex);
  return state_->received;
}

std::string ReadOperation::path() const {
  const std::lock_guard lock(state_->mutex);
  return state_->path;
}

}  // namespace tensorbus
