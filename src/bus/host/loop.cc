#include "bus/host/loop.h"

#include <poll.h>

#include <array>
#include <chrono>

#include "base/clock.h"
#include "os/process/awake.h"

namespace tensorbus::bus {
namespace {

constexpr Duration patience_at_the_end = std::chrono::seconds(1);
// How many steps an agent that has work makes before it looks for stop() and Ctrl-C.
constexpr unsigned steps_between_looks = 16;

bool signalled(const os::EventFd& stop) {
  pollfd descriptor{stop.get(), POLLIN, 0};
  return os::sleep_ready({&descriptor, 1}, Deadline(TimePoint{}));
}

// True if the agent is to stop.
bool sleep(Agent& agent, const os::EventFd& stop) {
  std::array<pollfd, 4> descriptors{};
  std::size_t at = 0;
  for (const int fd : agent.fds()) descriptors[at++] = {fd, POLLIN, 0};
  descriptors[at] = {stop.get(), POLLIN, 0};
  return os::sleep_ready(descriptors, Deadline(agent.wake_at())) && descriptors[at].revents != 0;
}

void serve(Agent& agent, os::EventFd& stop) {
  bool stopping = signalled(stop);
  os::Awake awake;
  bool hurries = false;
  for (unsigned steps = 1; !stopping; ++steps) {
    hurries = hurries ? awake.until([&] { return agent.look(now()); }) : agent.look(now());
    if (!hurries && agent.arm()) {
      stopping = sleep(agent, stop);
    } else if (steps % steps_between_looks == 0) {
      stopping = signalled(stop);
    }
  }
  agent.close();
  const Deadline patience = Deadline::after(patience_at_the_end);
  do {
    agent.step(now());
  } while (!agent.over() && !patience.expired());
}

}  // namespace

void run(Agent& agent, os::EventFd& stop) {
  try {
    serve(agent, stop);
  } catch (...) {
    const Status why = current_exception_status();
    if (why.code != Code::interrupted) agent.fail(why);
    throw;
  }
}

}  // namespace tensorbus::bus
