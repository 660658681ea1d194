// The floor of every request to a server: 32 bytes there and back, nothing in between. A bare epoll
// server and a bare blocking client, without parsing, buffers, deadlines or threads.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "os/io/fd.h"
#include "os/net/tcp.h"

namespace tensorbus::bench {

using EchoMessage = std::array<char, 32>;

// The first byte of a message. A wait and a release are the floor of waking another client; their
// last eight bytes say what for.
enum class EchoOp : char {
  echo = 'e',     // comes back
  wait = 'w',     // comes back once there is a release for the same
  release = 'r',  // answers all waits for the same, itself unanswered
};

class EchoServer {
 public:
  EchoServer() : listener_(os::listen_tcp("127.0.0.1", 0)), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (!epoll_) os::throw_errno("epoll_create1");
    watch(listener_.get());
  }

  std::uint16_t port() const { return os::local_port(listener_); }

  [[noreturn]] void run() {
    std::array<epoll_event, 256> events;
    while (true) {
      const int count =
          ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < count; ++i) {
        const int fd = events[static_cast<std::size_t>(i)].data.fd;
        fd == listener_.get() ? accept_all() : answer(fd);
      }
    }
  }

 private:
  void watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) os::throw_errno("epoll_ctl");
  }

  void accept_all() {
    while (true) {
      os::Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) return;
      os::tune_stream(socket);
      watch(socket.get());
      const int fd = socket.get();
      clients_.emplace(fd, std::move(socket));
    }
  }

  void answer(int fd) {
    // Clients send one message and wait, so a message always arrives whole.
    EchoMessage message;
    const ssize_t got = ::recv(fd, message.data(), message.size(), 0);
    if (got <= 0) {
      if (got == 0 || errno != EAGAIN) {
        std::erase_if(waiting_, [fd](const auto& wait) { return wait.second == fd; });
        clients_.erase(fd);
      }
      return;
    }
    switch (static_cast<EchoOp>(message[0])) {
      case EchoOp::echo:
        ::send(fd, message.data(), message.size(), MSG_NOSIGNAL);
        break;
      case EchoOp::wait:
        if (released_.contains(subject(message))) {
          ::send(fd, message.data(), message.size(), MSG_NOSIGNAL);
        } else {
          waiting_.emplace(subject(message), fd);
        }
        break;
      case EchoOp::release:
        const auto [begin, end] = waiting_.equal_range(subject(message));
        for (auto wait = begin; wait != end; ++wait) {
          ::send(wait->second, message.data(), message.size(), MSG_NOSIGNAL);
        }
        waiting_.erase(begin, end);
        released_.insert(subject(message));
        break;
    }
  }

  static std::uint64_t subject(const EchoMessage& message) {
    std::uint64_t subject = 0;
    std::memcpy(&subject, message.data() + message.size() - sizeof subject, sizeof subject);
    return subject;
  }

  os::Fd listener_;
  os::Fd epoll_;
  std::map<int, os::Fd> clients_;
  std::unordered_multimap<std::uint64_t, int> waiting_;
  std::unordered_set<std::uint64_t> released_;
};

class EchoClient {
 public:
  explicit EchoClient(std::uint16_t port)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
        0) {
      os::throw_errno("connect to the echo server");
    }
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  void send(EchoOp op, std::uint64_t subject = 0) {
    EchoMessage message{static_cast<char>(op)};
    std::memcpy(message.data() + message.size() - sizeof subject, &subject, sizeof subject);
    if (::send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(message.size())) {
      os::throw_errno("send to the echo server");
    }
  }
  void receive() {
    EchoMessage message;
    if (::recv(socket_.get(), message.data(), message.size(), MSG_WAITALL) !=
        static_cast<ssize_t>(message.size())) {
      os::throw_errno("receive from the echo server");
    }
  }
  void echo() {
    send(EchoOp::echo);
    receive();
  }

 private:
  os::Fd socket_;
};

}  // namespace tensorbus::bench
