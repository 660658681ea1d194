#include "os/io/fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "tensorbus/status.h"

namespace tensorbus::os {

void Fd::reset() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Fd duplicate(int fd) {
  Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw_errno("cannot duplicate a descriptor");
  return copy;
}

std::string errno_message(std::string_view what, int error_number) {
  return std::string(what) + ": " + std::system_category().message(error_number) + " (errno " +
         std::to_string(error_number) + ")";
}

void throw_errno(std::string_view what) { throw Error(Code::failed, errno_message(what, errno)); }

}  // namespace tensorbus::os
