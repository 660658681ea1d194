#include "store/server/acceptor.h"

#include <sys/socket.h>

#include <cerrno>

#include "os/net/tcp.h"

namespace tensorbus::store {

Acceptor::Acceptor(const std::string& host, std::uint16_t port)
    : listener_(os::listen_tcp(host, port)), port_(os::local_port(listener_.fd())) {}

os::Fd Acceptor::next() {
  while (!rests()) {
    os::Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client) return client;
    if (os::is_shortage(errno)) {
      rest(errno);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      break;
    }
  }
  return {};
}

}  // namespace tensorbus::store
