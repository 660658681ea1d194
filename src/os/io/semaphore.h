// POSIX named semaphores, for programs that wait on one by its name.
#pragma once

#include <semaphore.h>

#include <string>

#include "tensorbus/deadline.h"

namespace tensorbus::os {

class NamedSemaphore {
 public:
  // A new semaphore at 0, mode 0600; Error(failed) if the name is taken. Dropping the object closes
  // the semaphore and leaves the name.
  explicit NamedSemaphore(const std::string& name);
  ~NamedSemaphore();
  NamedSemaphore(const NamedSemaphore&) = delete;
  NamedSemaphore& operator=(const NamedSemaphore&) = delete;

  const std::string& name() const noexcept { return name_; }
  void post();
  int value() const;
  // False at the deadline. Throws Error(interrupted).
  bool wait(Deadline deadline);

 private:
  std::string name_;
  sem_t* semaphore_;
};

// Whether there was a semaphore of this name.
bool unlink_semaphore(const std::string& name) noexcept;

}  // namespace tensorbus::os
