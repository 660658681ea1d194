#include "os/io/poll.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/interrupt.h"

namespace tensorbus::os {

bool sleep_ready(std::span<pollfd> descriptors, Deadline deadline) {
  throw_if_interrupted();
  const Duration sleep = std::min(deadline.remaining(), longest_sleep());
  timespec timeout{};
  timespec* limit = nullptr;
  if (sleep != Duration::max()) {
    timeout.tv_sec = sleep.count() / 1'000'000'000;
    timeout.tv_nsec = sleep.count() % 1'000'000'000;
    limit = &timeout;
  }
  const int ready = ::ppoll(descriptors.data(), descriptors.size(), limit, nullptr);
  if (ready < 0 && errno != EINTR) throw_errno("poll");
  if (ready < 0) throw_if_interrupted();
  return ready > 0;
}

bool wait_ready(std::span<pollfd> descriptors, Deadline deadline) {
  while (!sleep_ready(descriptors, deadline)) {
    if (deadline.expired()) return false;
  }
  return true;
}

EventFd::EventFd() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw_errno("eventfd");
}

void EventFd::signal() noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then it is ready anyway.
  [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof one);
}

void EventFd::drain() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(fd_.get(), &count, sizeof count);
}

bool is_eventfd(const Fd& fd) {
  char target[64] = {};
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  const ssize_t size = ::readlink(path.c_str(), target, sizeof target - 1);
  return size > 0 && std::string_view(target) == "anon_inode:[eventfd]" &&
         ::fcntl(fd.get(), F_SETFL, O_NONBLOCK) == 0;
}

}  // namespace tensorbus::os
