// The address of a station: those of its transports in one.
#pragma once

#include <span>
#include <vector>

#include "fabric/core/identity.h"

namespace tensorbus::fabric {

// All of one process. One address stays what it is.
Address joined(std::span<const Address> addresses);
// The addresses that one holds; one of a single transport holds itself. Error(invalid_argument) if
// it is malformed.
std::vector<Address> parts_of(const Address& address);

// The same process, to be reached over the network only: for reads from several hosts at once. An
// address of a single transport stays what it is.
Address network_only(const Address& address);

}  // namespace tensorbus::fabric
