// All bytes through a blocking socket: the floor of every network.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstddef>

#include "os/io/fd.h"

namespace tensorbus::bench {

// For a minute at most: who waits for a process that has died gets an error.
inline void make_blocking(const os::Fd& socket) {
  const timeval patience{60, 0};
  if (::fcntl(socket.get(), F_SETFL, 0) != 0 ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0) {
    os::throw_errno("a blocking socket");
  }
}

inline void send_all(const os::Fd& socket, const std::byte* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::send(socket.get(), bytes, size, MSG_NOSIGNAL);
    if (count <= 0) os::throw_errno("send");
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
}

inline void receive_all(const os::Fd& socket, std::byte* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::recv(socket.get(), bytes, size, 0);
    if (count <= 0) os::throw_errno("recv");
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
}

}  // namespace tensorbus::bench
