// Threads and sockets do not survive a fork; an object that owns threads or sockets must notice
// that it is in a child.
#pragma once

#include <string_view>

namespace tensorbus::os {

// Closes the descriptor in every child that is forked from now on, until forget_in_children(). A
// socket that lives on in a child keeps peers from seeing that this process is gone. The child must
// not close the descriptor again.
void close_in_children(int fd);
// The same for the TCP sockets that an epoll set, or a set that it watches, watches when the fork
// comes: for libraries that keep their sockets to themselves. The set is forgotten like a
// descriptor.
void close_watched_in_children(int epoll_fd);
void forget_in_children(int fd) noexcept;

// Programs that are started from now on do not inherit the sockets that the set watches now.
void close_watched_on_exec(int epoll_fd) noexcept;

// Grows in each forked child. Compare with the value kept at construction.
unsigned fork_generation() noexcept;

// Throws Error(failed) in a process forked since `what` was made.
void check_not_forked(unsigned generation, std::string_view what);

}  // namespace tensorbus::os
