#include "base/interrupt.h"

#include <atomic>
#include <utility>

#include "tensorbus/status.h"

namespace tensorbus {
namespace {

std::atomic<InterruptCheck> installed_check{nullptr};
thread_local ThreadCheck* thread_check = nullptr;

}  // namespace

void set_interrupt_check(InterruptCheck check) noexcept { installed_check.store(check); }

ThreadCheck* exchange_thread_check(ThreadCheck* check) noexcept {
  return std::exchange(thread_check, check);
}

void throw_if_interrupted() {
  if (thread_check != nullptr) thread_check->throw_if_ended();
  const InterruptCheck check = installed_check.load();
  if (check != nullptr && check()) throw Error(Code::interrupted, "interrupted by a signal");
}

Duration longest_sleep() noexcept {
  const bool asks = thread_check != nullptr || installed_check.load() != nullptr;
  return asks ? std::chrono::milliseconds(250) : Duration::max();
}

}  // namespace tensorbus
