// What an epoll set watches, as the kernel tells it.
#pragma once

namespace tensorbus::os {

// Calls `act` with every TCP socket that the set watches, itself or through other sets. Without
// /proc there are none. Safe in a child that a process with threads has just forked.
void for_watched_sockets(int epoll_fd, void (*act)(int fd)) noexcept;

}  // namespace tensorbus::os
