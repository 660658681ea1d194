// How a client finds the agent that listens at a path, and the two make sure of each other.
#pragma once

#include <atomic>
#include <memory>

#include "bus/socket/connection.h"
#include "bus/socket/frame_socket.h"
#include "bus/socket/protocol.h"
#include "os/io/poll.h"
#include "tensorbus/deadline.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {

struct Greeted {
  std::unique_ptr<FrameSocket> socket;
  protocol::Welcome welcome;
};

// Tries again until the deadline; `wake` ends a wait, `closed` everything. An agent that is not
// this client's is an error at once, unless the client had its agent before: then greet_agent()
// waits for that agent.
Greeted greet_agent(const SocketConnectionOptions& options, std::uint64_t session,
                    const os::EventFd& wake, const std::atomic<bool>& closed, bool returning,
                    Deadline deadline);

// What a caller is told, with what was found instead of the agent.
Error unreachable_agent(const SocketConnectionOptions& options, const std::string& found);

}  // namespace tensorbus::bus
