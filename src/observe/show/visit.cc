#include "observe/show/visit.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace tensorbus::observe {
namespace {

constexpr std::size_t largest_request = 1 << 16;

bool again() { return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

// Not through os/io/poll.h: a visit ends by itself, and asks no interpreter for Ctrl-C.
bool Visit::wait(short event) const {
  while (true) {
    std::array<pollfd, 2> descriptors{{{socket_, event, 0}, {stopping_, POLLIN, 0}}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_.remaining());
    const int ready =
        ::poll(descriptors.data(), descriptors.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0 && descriptors[1].revents == 0;
  }
}

bool Visit::is_readable() const { return begin_ < end_ || wait(POLLIN); }

bool Visit::is_writable() const { return wait(POLLOUT); }

bool Visit::fill() {
  while (wait(POLLIN)) {
    const ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got < 0 && again()) continue;
    if (got <= 0) return false;
    begin_ = 0;
    end_ = static_cast<std::size_t>(got);
    received_ += end_;
    return received_ <= largest_request;
  }
  return false;
}

ssize_t Visit::read(char* to, std::size_t size) {
  if (begin_ == end_ && !fill()) return -1;
  const std::size_t count = std::min(size, end_ - begin_);
  std::memcpy(to, buffer_.data() + begin_, count);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Visit::write(const char* from, std::size_t size) {
  if (!std::exchange(answers_, true)) deadline_ = Deadline::after(patience_);
  for (std::size_t sent = 0; sent < size;) {
    if (!wait(POLLOUT)) return -1;
    const ssize_t count = ::send(socket_, from + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && again()) continue;
    if (count <= 0) return -1;
    sent += static_cast<std::size_t>(count);
  }
  return static_cast<ssize_t>(size);
}

// No page asks who its visitor is.
void Visit::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void Visit::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace tensorbus::observe
