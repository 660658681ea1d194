// An agent's life on a thread: step, sleep until something happens, step.
#pragma once

#include "bus/agent/agent.h"
#include "os/io/poll.h"

namespace tensorbus::bus {

// Returns when `stop` was signalled and the agent has let go of everything, or a second later.
// Throws Error(interrupted). Whatever else leaves the agent ends all its commands before it is
// thrown on; the agent is of no more use then.
void run(Agent& agent, os::EventFd& stop);

}  // namespace tensorbus::bus
