#include "os/net/tcp.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <memory>

#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  // Numeric first: no name server is asked for an address that needs none.
  int failure = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  if (failure != 0) {
    hints.ai_flags &= ~AI_NUMERICHOST;
    failure = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  }
  if (failure != 0) {
    throw Error(Code::unreachable,
                "host \"" + host + "\" cannot be resolved: " + ::gai_strerror(failure));
  }
  return {found, &::freeaddrinfo};
}

Fd new_socket(int family) {
  Fd socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket) throw_errno("socket");
  return socket;
}

std::string numeric(const sockaddr& address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int failure =
      ::getnameinfo(&address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  if (failure != 0)
    throw Error(Code::failed, std::string("getnameinfo: ") + ::gai_strerror(failure));
  return text.data();
}

// 0, or the errno of the failure.
int finish_connect(const Fd& socket, Deadline deadline, const EventFd* abort) {
  std::array<pollfd, 2> descriptors{pollfd{socket.get(), POLLOUT, 0},
                                    pollfd{abort != nullptr ? abort->get() : -1, POLLIN, 0}};
  if (!wait_ready(descriptors, deadline)) return ETIMEDOUT;
  if (descriptors[1].revents != 0) throw Error(Code::cancelled, "connecting was cancelled");
  int failure = 0;
  socklen_t size = sizeof failure;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
  return failure;
}

}  // namespace

void tune_stream(const Fd& socket) {
  const auto set = [&](int level, int name, int value) {
    ::setsockopt(socket.get(), level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // Without these a peer whose machine is gone is noticed after two hours.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
}

std::string host_port(const std::string& host, std::uint16_t port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Fd listen_tcp(const std::string& host, std::uint16_t port) {
  const Addresses addresses = resolve(host, port, AI_NUMERICHOST | AI_PASSIVE);
  Fd socket = new_socket(addresses->ai_family);
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      // The kernel cuts the backlog to net.core.somaxconn.
      ::listen(socket.get(), INT_MAX) != 0) {
    const int failure = errno;
    std::string message = errno_message("cannot listen on " + host_port(host, port), failure);
    if (failure == EADDRINUSE) message += "; another server runs there: choose another port, or 0";
    if (failure == EADDRNOTAVAIL) message += "; give an address of this machine";
    throw Error(Code::failed, message);
  }
  return socket;
}

std::vector<ListeningSocket> listening_sockets() {
  std::vector<ListeningSocket> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_storage address{};
    size = sizeof address;
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> port{};
    const auto* bound = reinterpret_cast<const sockaddr*>(&address);
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        (bound->sa_family != AF_INET && bound->sa_family != AF_INET6) ||
        ::getnameinfo(bound, size, host.data(), host.size(), port.data(), port.size(),
                      NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
      continue;
    }
    found.push_back({fd, host.data(), static_cast<std::uint16_t>(std::stoi(port.data()))});
  }
  return found;
}

std::vector<std::string> listening_addresses() {
  std::vector<std::string> found;
  for (const ListeningSocket& each : listening_sockets()) {
    found.push_back(host_port(each.host, each.port));
  }
  return found;
}

std::uint16_t local_port(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw_errno("getsockname");
  }
  return address.ss_family == AF_INET6
             ? ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port)
             : ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string address_towards(const std::string& host, std::uint16_t port) {
  const Addresses addresses = resolve(host, port, AI_NUMERICHOST);
  const Fd socket(::socket(addresses->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP));
  if (!socket) throw_errno("socket");
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::connect(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    throw Error(Code::unreachable,
                errno_message("no way leads to " + host_port(host, port), errno));
  }
  return numeric(reinterpret_cast<const sockaddr&>(own), size);
}

std::string address_of_device(const std::string& device) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw_errno("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || device != entry->ifa_name) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    return numeric(*entry->ifa_addr,
                   family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  }
  throw Error(Code::invalid_argument, "no network device \"" + device + "\" with an address");
}

Fd connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline,
               const EventFd* abort) {
  const Addresses addresses = resolve(host, port, AI_NUMERICHOST);
  std::string reasons;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Fd socket = new_socket(address->ai_family);
    int failure = 0;
    if (::connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0) {
      failure = errno == EINPROGRESS ? finish_connect(socket, deadline, abort) : errno;
    }
    if (failure == 0) {
      tune_stream(socket);
      return socket;
    }
    if (!reasons.empty()) reasons += "; ";
    reasons += errno_message("cannot connect to " + host_port(host, port), failure);
  }
  throw Error(Code::unreachable, reasons);
}

}  // namespace tensorbus::os
