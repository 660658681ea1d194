// The fabric of an agent: shared memory on its host and, if it is bound to an address, the network.
#pragma once

#include <memory>
#include <string>

#include "fabric/core/fabric.h"
#include "fabric/core/pool.h"
#include "fabric/core/port_range.h"

namespace tensorbus::bus {

// `bind`: an address of this machine that the other hosts reach; empty: no network. Over it only
// those may connect who were admitted.
std::unique_ptr<fabric::Fabric> make_agent_fabric(Rank rank, const std::string& secret,
                                                  std::shared_ptr<fabric::Pool> pool,
                                                  const std::string& bind,
                                                  const fabric::PortRange& ports);

}  // namespace tensorbus::bus
