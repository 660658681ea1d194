#include "bus/client/turns.h"

#include <utility>

#include "base/waiting.h"

namespace tensorbus::bus {

bool Turns::taken() const {
  const Lock lock(mutex_);
  return !queue_.empty();
}

Turn::Turn(std::shared_ptr<Turns> turns) : turns_(std::move(turns)) {
  const Lock lock(turns_->mutex_);
  place_ = ++turns_->last_;
  turns_->queue_.push_back(place_);
}

bool Turn::wait(Deadline deadline) {
  Turns& turns = *turns_;
  Lock lock(turns.mutex_);
  return tensorbus::wait(lock, turns.changed_, deadline, [&]() REQUIRES(turns.mutex_) {
    return !turns.queue_.empty() && turns.queue_.front() == place_;
  });
}

bool Turn::is_next() const {
  const Lock lock(turns_->mutex_);
  return !turns_->queue_.empty() && turns_->queue_.front() == place_;
}

void Turn::leave() noexcept {
  const Lock lock(turns_->mutex_);
  std::erase(turns_->queue_, place_);
  turns_->changed_.notify_all();
}

}  // namespace tensorbus::bus
