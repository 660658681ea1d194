#include "bus/loop.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "base/clock.h"
#include "base/interrupt.h"

namespace tensorbus::bus {
namespace {

constexpr Duration patience_at_the_end = std::chrono::seconds(1);

void sleep(Agent& agent, const os::EventFd& stop) {
  if (!agent.arm()) return;
  std::array<pollfd, 4> descriptors{};
  std::size_t at = 0;
  for (const int fd : agent.fds()) descriptors[at++] = {fd, POLLIN, 0};
  descriptors[at] = {stop.get(), POLLIN, 0};
  const Duration left = std::min(agent.wake_at() - now(), longest_sleep());
  if (left <= Duration::zero()) return;
  const timespec time{std::chrono::duration_cast<std::chrono::seconds>(left).count(),
                      (left % std::chrono::seconds(1)).count()};
  ::ppoll(descriptors.data(), descriptors.size(), &time, nullptr);
}

bool signalled(const os::EventFd& stop) {
  pollfd descriptor{stop.get(), POLLIN, 0};
  return ::poll(&descriptor, 1, 0) == 1;
}

}  // namespace

void run(Agent& agent, os::EventFd& stop) {
  while (!signalled(stop)) {
    agent.step(now());
    sleep(agent, stop);
    throw_if_interrupted();
  }
  agent.close();
  const Deadline patience = Deadline::after(patience_at_the_end);
  do {
    agent.step(now());
  } while (!agent.over() && !patience.expired());
}

}  // namespace tensorbus::bus
