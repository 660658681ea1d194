#include "os/io/semaphore.h"

#include <fcntl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

#include "base/interrupt.h"
#include "os/io/fd.h"

namespace tensorbus::os {

NamedSemaphore::NamedSemaphore(const std::string& name)
    : name_(name), semaphore_(::sem_open(name.c_str(), O_CREAT | O_EXCL, 0600, 0)) {
  if (semaphore_ == SEM_FAILED) throw_errno("cannot make the semaphore " + name);
}

NamedSemaphore::~NamedSemaphore() { ::sem_close(semaphore_); }

void NamedSemaphore::post() {
  if (::sem_post(semaphore_) != 0) throw_errno("cannot post the semaphore " + name_);
}

int NamedSemaphore::value() const {
  int value = 0;
  if (::sem_getvalue(semaphore_, &value) != 0) throw_errno("semaphore " + name_);
  return value;
}

bool NamedSemaphore::wait(Deadline deadline) {
  while (true) {
    throw_if_interrupted();
    // The steady clock's epoch is CLOCK_MONOTONIC's.
    const Duration slice = std::min(longest_sleep(), Duration(std::chrono::seconds(60)));
    const TimePoint until = sooner(deadline, Deadline::after(slice)).at();
    const std::int64_t ns = until.time_since_epoch().count();
    const timespec at{static_cast<time_t>(ns / 1'000'000'000), ns % 1'000'000'000};
    if (::sem_clockwait(semaphore_, CLOCK_MONOTONIC, &at) == 0) return true;
    if (errno != ETIMEDOUT && errno != EINTR) throw_errno("cannot wait for " + name_);
    if (errno == ETIMEDOUT && deadline.expired()) return false;
  }
}

bool unlink_semaphore(const std::string& name) noexcept { return ::sem_unlink(name.c_str()) == 0; }

}  // namespace tensorbus::os
