#include "bus/client/transfer.h"

#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "base/secret.h"
#include "base/waiting.h"

namespace tensorbus::bus {
namespace {

constexpr std::size_t longest_semaphore_name = 250;
constexpr const char* cancelled_by_caller = "cancelled by its caller";

}  // namespace

std::string semaphore_name(const std::string& type, const std::string& context) {
  const std::string tail =
      "_" + std::to_string(::getpid()) + "_" + to_hex(view(random_id())).substr(0, 16);
  std::string head = "/command_" + type + "_" + context;
  std::replace(head.begin() + 1, head.end(), '/', '_');
  std::replace(head.begin(), head.end(), ':', '_');
  return head.substr(0, longest_semaphore_name - tail.size()) + tail;
}

TransferState::TransferState(std::shared_ptr<Pending> pending,
                             std::shared_ptr<Connection> connection, std::string type,
                             std::string context, std::function<void()> settle)
    : pending_(std::move(pending)),
      connection_(std::move(connection)),
      type_(std::move(type)),
      context_(std::move(context)),
      settle_(std::move(settle)) {}

TransferState::~TransferState() { unlink(); }

void TransferState::start() {
  pending_->on_done([self = shared_from_this()] { self->settle(); });
}

void TransferState::settle() noexcept {
  {
    const Lock lock(settling_);
    if (const auto call = std::exchange(settle_, nullptr)) call();
  }
  if (!pending_->done()) return;
  const Lock lock(mutex_);
  if (std::exchange(posted_, true)) return;
  if (semaphore_ == nullptr) {
    ++count_;
    counted_.notify_all();
    return;
  }
  try {
    semaphore_->post();
  } catch (const Error& error) {
    log::error("{}", error.what());
  }
}

bool TransferState::done() {
  if (!pending_->done()) return false;
  settle();
  return true;
}

const Outcome& TransferState::wait(Deadline deadline) {
  const Outcome& outcome = pending_->wait(deadline);
  settle();
  return outcome;
}

void TransferState::result(Deadline deadline) {
  const Outcome& outcome = wait(deadline);
  if (!outcome.status.ok()) throw CommandError(outcome);
}

const std::string& TransferState::name(Deadline deadline) {
  Lock lock(mutex_);
  if (!name_.empty()) return name_;
  const std::string made = semaphore_name(type_, context_);
  lock.unlock();
  // First, so that no death in between leaves the semaphore behind.
  connection_->guard_semaphore(made, deadline);
  lock.lock();
  if (!name_.empty()) {
    connection_->release_semaphore(made);
    return name_;
  }
  semaphore_ = std::make_unique<os::NamedSemaphore>(made);
  for (; count_ > 0; --count_) semaphore_->post();
  linked_ = true;
  name_ = made;
  counted_.notify_all();
  return name_;
}

int TransferState::value() {
  done();
  const Lock lock(mutex_);
  return semaphore_ == nullptr ? count_ : semaphore_->value();
}

bool TransferState::acquire(Deadline deadline) {
  done();
  Lock lock(mutex_);
  const auto counted = [this]() REQUIRES(mutex_) { return semaphore_ != nullptr || count_ > 0; };
  if (!tensorbus::wait(lock, counted_, deadline, counted)) return false;
  if (semaphore_ == nullptr) {
    --count_;
    lock.unlock();
  } else {
    os::NamedSemaphore& named = *semaphore_;
    lock.unlock();
    if (!named.wait(deadline)) return false;
  }
  if (!done()) return true;  // released by hand
  unlink();
  const Outcome& outcome = pending_->wait(Deadline::never());
  if (!outcome.status.ok()) throw CommandError(outcome);
  return true;
}

void TransferState::release() {
  const Lock lock(mutex_);
  if (semaphore_ != nullptr) return semaphore_->post();
  ++count_;
  counted_.notify_all();
}

void RunningCall::cancel() noexcept {
  cancel_waits(cancelled_by_caller);
  std::shared_ptr<TransferState> state;
  {
    const Lock lock(mutex_);
    state = state_;
  }
  if (state != nullptr) state->cancel({Code::cancelled, cancelled_by_caller});
}

void RunningCall::cancel_waits(const char* why) noexcept {
  const Lock lock(mutex_);
  if (state_ != nullptr) return;
  ended_early_ = why;
  waits_.interrupt(why);
}

const char* RunningCall::ended_early() const {
  const Lock lock(mutex_);
  return ended_early_;
}

void RunningCall::transfers(std::shared_ptr<TransferState> state) noexcept {
  const char* ended = nullptr;
  {
    const Lock lock(mutex_);
    state_ = state;
    ended = ended_early_;
    waits_.take_back();
  }
  if (ended != nullptr) state->cancel({Code::cancelled, ended});
}

std::pair<std::int64_t, std::int64_t> RunningCall::progress() const {
  const Lock lock(mutex_);
  if (state_ == nullptr) return {0, 0};
  return {state_->bytes_done(), state_->bytes_total()};
}

void TransferState::unlink() noexcept {
  const Lock lock(mutex_);
  if (!std::exchange(linked_, false)) return;
  os::unlink_semaphore(name_);
  connection_->release_semaphore(name_);
}

}  // namespace tensorbus::bus
