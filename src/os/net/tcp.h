// TCP sockets: listening and connecting, without blocking and without reverse look-ups.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "os/io/fd.h"
#include "os/io/poll.h"
#include "tensorbus/deadline.h"

namespace tensorbus::os {

// "host:port", IPv6 in brackets.
std::string host_port(const std::string& host, std::uint16_t port);

// A non-blocking listening socket on exactly this address, with the longest backlog allowed.
Fd listen_tcp(const std::string& host, std::uint16_t port);
std::uint16_t local_port(const Fd& socket);
// Where this process listens for TCP connections.
struct ListeningSocket {
  int fd = -1;
  std::string host;
  std::uint16_t port = 0;
};
std::vector<ListeningSocket> listening_sockets();
// Where this process listens, as host_port() writes it.
std::vector<std::string> listening_addresses();

// The address of ours that packets to this one carry. Sends nothing.
std::string address_towards(const std::string& host, std::uint16_t port);

// The first address of a network device. Error(invalid_argument) if there is none.
std::string address_of_device(const std::string& device);

// No delay for small messages; a peer whose machine vanished is noticed within seconds.
void tune_stream(const Fd& socket);

// A connected, non-blocking socket, tuned. Tries each address of the name once and
// throws Error(unreachable) saying why each failed. Signalling `abort` ends the call with
// Error(cancelled).
Fd connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline,
               const EventFd* abort = nullptr);

}  // namespace tensorbus::os
