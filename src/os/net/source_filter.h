// Which hosts may connect to a listening socket. The kernel drops the first packet of all others:
// to those hosts it is as if nobody were there, and no byte of theirs reaches the process.
#pragma once

#include <linux/filter.h>

#include <set>
#include <vector>

#include "os/net/ip_address.h"

namespace tensorbus::os {

enum class Admitted {
  exactly,    // whom was asked for
  networks,   // and their neighbours: they are too many for one filter
  everybody,  // this kernel takes no filter
};

// From now on, and in place of the hosts that the socket admitted before. Connections that stand
// are not touched: each keeps the filter that it was accepted under. A host that calls before it is
// admitted gets through with its next attempt, after a second.
Admitted admit_only(int listening_socket, const std::set<IpAddress>& sources);

// A program for the kernel, of addresses whose first bits count. For tests.
struct PrefixBits {
  unsigned v4 = 32;
  unsigned v6 = 128;  // a multiple of 32
};
std::vector<sock_filter> filter_program(const std::set<IpAddress>& sources, PrefixBits prefix);

}  // namespace tensorbus::os
