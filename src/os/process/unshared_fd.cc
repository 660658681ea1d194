#include "os/process/unshared_fd.h"

#include "os/process/fork.h"

namespace tensorbus::os {

UnsharedFd::UnsharedFd(Fd fd) : fd_(std::move(fd)), generation_(fork_generation()) {
  if (fd_) close_in_children(fd_.get());
}

void UnsharedFd::reset() noexcept {
  if (!fd_) return;
  if (generation_ != fork_generation()) {
    // In a child the number is free already, and may be somebody else's by now: never closed again.
    new auto(std::move(fd_));
    return;
  }
  forget_in_children(fd_.get());
  fd_.reset();
}

}  // namespace tensorbus::os
