#include "os/io/shortage.h"

#include <cerrno>

#include "base/log.h"
#include "os/io/fd.h"

namespace tensorbus::os {
namespace {

constexpr Duration pause = std::chrono::milliseconds(100);

}  // namespace

bool is_shortage(int error_number) noexcept {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOMEM ||
         error_number == ENOBUFS;
}

void Shortage::begin(int error_number, TimePoint now) {
  until_ = now + pause;
  if (std::exchange(told_, true)) return;
  log::warn("{}: {}; who connects waits until that is over (see ulimit -n)", who_,
            errno_message("no connection can be accepted", error_number));
}

bool Shortage::pause_is_over(TimePoint now) noexcept {
  if (now < until_) return false;
  until_ = TimePoint::max();
  return true;
}

void Shortage::end() {
  if (std::exchange(told_, false)) log::info("{}: connections are accepted again", who_);
}

}  // namespace tensorbus::os
