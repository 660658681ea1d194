// Several fabrics of one process as one: each peer is served by the best that reaches it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/core/fabric.h"
#include "fabric/route/select.h"

namespace tensorbus::fabric {

// Its address holds those of its parts. Regions are exposed through all of them; a read takes all
// its bytes through one, so its sources must be connected through the same.
std::unique_ptr<Fabric> make_routed_fabric(std::vector<std::unique_ptr<Fabric>> parts, Reach reach);

// The same process, to be reached over the network only: for reads from several hosts at once. An
// address of another fabric stays what it is.
Address network_only(const Address& address);

}  // namespace tensorbus::fabric
