// A client's end of a daemon's channel.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bus/channel/channel.h"
#include "bus/channel/loan.h"

namespace tensorbus::bus {

struct SocketConnectionOptions {
  std::string queue_path;
  std::string state_path;
  std::string space = "default";
  Rank rank = 0;
  // How the agent is told of lent memory.
  std::function<LoanOffer(const Loan&)> offer;
};

// Waits until the agent is there and answers; Error(unreachable) at the deadline says what was
// found instead, and at once if the agent is one of another job, rank or version.
//
// When the agent ends, everything that it had accepted ends as unreachable. The connection comes
// back when an agent does, passes the memory of all registrations again and sends what was not
// accepted.
std::shared_ptr<Connection> connect_to_agent(SocketConnectionOptions options, Deadline deadline);

}  // namespace tensorbus::bus
