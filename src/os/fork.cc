#include "os/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

std::atomic<unsigned> generation{0};

// Never destroyed: forks happen until the very end.
struct Closed {
  std::mutex mutex;
  std::vector<int> fds;
};
Closed& closed() {
  static Closed& all = *new Closed;
  return all;
}

// The lock is held across the fork, so that the child sees a whole list.
[[maybe_unused]] const int registered =
    ::pthread_atfork([] { closed().mutex.lock(); }, [] { closed().mutex.unlock(); },
                     [] {
                       for (const int fd : closed().fds) ::close(fd);
                       closed().fds.clear();
                       closed().mutex.unlock();
                       generation.fetch_add(1, std::memory_order_relaxed);
                     });

}  // namespace

void close_in_children(int fd) {
  const std::lock_guard lock(closed().mutex);
  closed().fds.push_back(fd);
}

void forget_in_children(int fd) noexcept {
  const std::lock_guard lock(closed().mutex);
  std::erase(closed().fds, fd);
}

unsigned fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

void check_not_forked(unsigned made_in, std::string_view what) {
  if (made_in == fork_generation()) return;
  throw Error(Code::failed, "this " + std::string(what) +
                                " was made before a fork; make another one in the child process");
}

}  // namespace tensorbus::os
