// A file descriptor with one owner.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace tensorbus::os {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

Fd duplicate(int fd);

// "name: what the operating system says (errno 2)".
std::string errno_message(std::string_view what, int error_number);

// Throws Error(failed) with errno_message() of the current errno.
[[noreturn]] void throw_errno(std::string_view what);

}  // namespace tensorbus::os
