#include "base/interrupt.h"

#include <atomic>

#include "tensorbus/status.h"

namespace tensorbus {
namespace {

std::atomic<InterruptCheck> installed_check{nullptr};

}  // namespace

void set_interrupt_check(InterruptCheck check) noexcept { installed_check.store(check); }

void throw_if_interrupted() {
  const InterruptCheck check = installed_check.load();
  if (check != nullptr && check()) throw Error(Code::interrupted, "interrupted by a signal");
}

Duration longest_sleep() noexcept {
  return installed_check.load() == nullptr ? Duration::max() : std::chrono::milliseconds(250);
}

}  // namespace tensorbus
