#include "os/process/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "os/process/watched.h"
#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

std::atomic<unsigned> generation{0};

// Never destroyed: forks happen until the very end.
struct Closed {
  ProcessMutex mutex;
  std::vector<int> fds GUARDED_BY(mutex);
  std::vector<int> sets GUARDED_BY(mutex);  // epoll sets whose sockets are closed
};
Closed& closed() {
  static Closed& all = *new Closed;
  return all;
}
[[maybe_unused]] const Closed& made_at_load = closed();

// Without the mutex: a child has one thread, and where base's mutexes are let go of later than
// this, the mutex is held.
[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, []() LOCKS_UNCHECKED {
  for (const int set : closed().sets) {
    for_watched_sockets(set, [](int fd) { ::close(fd); });
  }
  for (const int fd : closed().fds) ::close(fd);
  closed().sets.clear();
  closed().fds.clear();
  generation.fetch_add(1, std::memory_order_relaxed);
});

}  // namespace

void close_in_children(int fd) {
  const Lock lock(closed().mutex);
  closed().fds.push_back(fd);
}

void close_watched_in_children(int epoll_fd) {
  const Lock lock(closed().mutex);
  closed().sets.push_back(epoll_fd);
}

void forget_in_children(int fd) noexcept {
  const Lock lock(closed().mutex);
  std::erase(closed().fds, fd);
  std::erase(closed().sets, fd);
}

void close_watched_on_exec(int epoll_fd) noexcept {
  for_watched_sockets(epoll_fd, [](int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); });
}

unsigned fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

void check_not_forked(unsigned made_in, std::string_view what) {
  if (made_in == fork_generation()) return;
  throw Error(Code::failed, "this " + std::string(what) +
                                " was made before a fork; make another one in the child process");
}

}  // namespace tensorbus::os
