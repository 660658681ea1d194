// A fabric does not survive a fork: its sockets are closed in the child, its memory is the
// parent's.
#pragma once

#include <memory>

#include "fabric/core/fabric.h"

namespace tensorbus::fabric {

// The same fabric, but in a forked child every call throws Error(failed) and dropping it does
// nothing. Regions look after themselves.
std::unique_ptr<Fabric> guard_against_fork(std::unique_ptr<Fabric> fabric);

}  // namespace tensorbus::fabric
