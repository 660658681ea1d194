// The address of a station: the addresses of its transports in one.
#pragma once

#include <span>
#include <vector>

#include "fabric/core/identity.h"

namespace tensorbus::fabric {

// The addresses are all of one process. A single address stays what it is.
Address joined(std::span<const Address> addresses);
// The addresses that this one holds; an address of a single transport holds itself.
// Error(invalid_argument) if the address is malformed.
std::vector<Address> parts_of(const Address& address);

// The same process, to be reached over the network only: for reads from several hosts at once. An
// address of a single transport stays what it is.
Address network_only(const Address& address);

}  // namespace tensorbus::fabric
