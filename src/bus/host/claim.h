// One agent per rank.
#pragma once

#include <string>

#include "fabric/core/fabric.h"
#include "tensorbus/deadline.h"
#include "tensorbus/store.h"

namespace tensorbus::bus {

// Error(invalid_argument) that names the agent which has the rank, if one answers. A record that a
// dead one has left is no obstacle. `fabric` is polled meanwhile: call it before an agent has it.
void check_rank_is_free(Store& store, const std::string& space, Rank rank, fabric::Fabric& fabric,
                        const std::string& secret, Deadline deadline);

}  // namespace tensorbus::bus
