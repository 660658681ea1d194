// The station of an agent, which has its rank for itself.
#pragma once

#include <memory>
#include <string>

#include "copy/crew.h"
#include "fabric/core/pool.h"
#include "fabric/core/port_range.h"
#include "fabric/route/station.h"
#include "tensorbus/deadline.h"
#include "tensorbus/store.h"

namespace tensorbus::bus {

struct AgentPlace {
  Rank rank = 0;
  std::string space;
  std::string secret;                  // of the space
  std::shared_ptr<fabric::Pool> pool;  // whose memory others map
  // An address of this machine that the other hosts reach; empty: no network. Over the network only
  // those may connect who were admitted.
  std::string bind;
  fabric::PortRange ports{};         // to listen on there
  std::shared_ptr<copy::Crew> crew;  // whose threads copy
};

// Error(invalid_argument) that names the agent which has the rank already, if one answers. A record
// that a dead agent has left is no obstacle.
std::unique_ptr<fabric::Station> open_station(Store& store, AgentPlace place, Deadline deadline);

}  // namespace tensorbus::bus
