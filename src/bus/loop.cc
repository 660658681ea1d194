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
// How many steps an agent that has work makes before it is asked whether to stop.
constexpr unsigned steps_between_looks = 16;

bool signalled(const os::EventFd& stop) {
  pollfd descriptor{stop.get(), POLLIN, 0};
  return ::poll(&descriptor, 1, 0) == 1;
}

// True if it is to stop.
bool sleep(Agent& agent, const os::EventFd& stop) {
  std::array<pollfd, 4> descriptors{};
  std::size_t at = 0;
  for (const int fd : agent.fds()) descriptors[at++] = {fd, POLLIN, 0};
  descriptors[at] = {stop.get(), POLLIN, 0};
  const Duration left = std::min(agent.wake_at() - now(), longest_sleep());
  if (left <= Duration::zero()) return signalled(stop);
  const timespec time{std::chrono::duration_cast<std::chrono::seconds>(left).count(),
                      (left % std::chrono::seconds(1)).count()};
  return ::ppoll(descriptors.data(), descriptors.size(), &time, nullptr) > 0 &&
         descriptors[at].revents != 0;
}

}  // namespace

void run(Agent& agent, os::EventFd& stop) {
  bool stopping = signalled(stop);
  for (unsigned steps = 1; !stopping; ++steps) {
    agent.step(now());
    if (agent.arm()) {
      stopping = sleep(agent, stop);
    } else if (steps % steps_between_looks == 0) {
      stopping = signalled(stop);
    }
    throw_if_interrupted();
  }
  agent.close();
  const Deadline patience = Deadline::after(patience_at_the_end);
  do {
    agent.step(now());
  } while (!agent.over() && !patience.expired());
}

}  // namespace tensorbus::bus
