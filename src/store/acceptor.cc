#include "store/acceptor.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/clock.h"
#include "base/log.h"
#include "os/tcp.h"

namespace tensorbus::store {
namespace {

constexpr Duration rest_time = std::chrono::milliseconds(100);

bool is_lack(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

Acceptor::Acceptor(const std::string& host, std::uint16_t port)
    : listener_(os::listen_tcp(host, port)), port_(os::local_port(listener_.fd())) {}

os::Fd Acceptor::next() {
  while (!rests_until_) {
    os::Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client) {
      if (std::exchange(told_, false)) log::info("new clients are accepted again");
      return client;
    }
    if (is_lack(errno)) {
      rest(errno);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      break;
    }
  }
  return {};
}

void Acceptor::rest(int lack) {
  const TimePoint time = now();
  rests_until_ = time + rest_time;
  if (!lack_is_told_.due(time)) return;
  told_ = true;
  log::warn("{}; new clients wait until there is enough again, those that are here go on",
            os::errno_message("accept", lack));
}

}  // namespace tensorbus::store
