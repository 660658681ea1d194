#include <algorithm>

#include "tensorbus/store.h"

namespace tensorbus {

void Cancellation::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (Hook* hook : hooks_) hook->wake_();
}

Cancellation::Hook::Hook(Cancellation* cancellation, std::function<void()> wake)
    : cancellation_(cancellation), wake_(std::move(wake)) {
  if (cancellation_ == nullptr) return;
  const std::lock_guard lock(cancellation_->mutex_);
  cancellation_->hooks_.push_back(this);
  if (cancellation_->cancelled_) wake_();
}

Cancellation::Hook::~Hook() {
  if (cancellation_ == nullptr) return;
  const std::lock_guard lock(cancellation_->mutex_);
  std::erase(cancellation_->hooks_, this);
}

}  // namespace tensorbus
