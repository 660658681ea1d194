// A descriptor that forked children do not keep: peers see at once that the descriptor's owner is
// gone, and what the descriptor holds (a port, a file's lock) is free again, whatever children live
// on.
#pragma once

#include <utility>

#include "os/io/fd.h"

namespace tensorbus::os {

class UnsharedFd {
 public:
  UnsharedFd() = default;
  explicit UnsharedFd(Fd fd);
  UnsharedFd(UnsharedFd&& other) noexcept
      : fd_(std::move(other.fd_)), generation_(other.generation_) {}
  UnsharedFd& operator=(UnsharedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(generation_, other.generation_);
    return *this;
  }
  ~UnsharedFd() { reset(); }

  const Fd& fd() const noexcept { return fd_; }
  int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  void reset() noexcept;

 private:
  Fd fd_;
  unsigned generation_ = 0;
};

}  // namespace tensorbus::os
