// The TCP echo of tcp_echo.py with several clients; the one that measures is this process.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "fabric/conformance/two_hosts.h"
#include "os/net/tcp.h"
#include "plain_socket.h"

namespace tensorbus::bench {

class PythonEcho {
 public:
  // The server on the second host, if there are two; this process on the first.
  PythonEcho(int clients, const fabric::TwoHosts* hosts)
      : host_(hosts != nullptr ? fabric::TwoHosts::address(1) : "127.0.0.1"), hosts_(hosts) {
    port_ = os::local_port(os::listen_tcp("127.0.0.1", 0));
    start(1, "serve", clients);
    for (int i = 1; i < clients; ++i) start(0, "keep_asking", clients);
    socket_ = connect();
    make_blocking(socket_);
    rest();
  }

  void round_trip(std::span<const std::byte> push, std::span<std::byte> pull) {
    const std::uint64_t size = push.size();
    message_.resize(sizeof size + push.size());
    std::memcpy(message_.data(), &size, sizeof size);
    std::memcpy(message_.data() + sizeof size, push.data(), push.size());
    send_all(socket_, message_.data(), message_.size());
    receive_all(socket_, pull.data(), pull.size());
  }
  // The other clients are not served until the next round trip.
  void rest() {
    const std::array<std::byte, 8> nothing{};
    send_all(socket_, nothing.data(), nothing.size());
  }

 private:
  void start(int host, const std::string& role, int clients) {
    children_.push_back(std::make_unique<fabric::Child>([=, this] {
      if (hosts_ != nullptr) hosts_->enter(host);
      ::setenv("ECHO_HOST", host_.c_str(), 1);
      ::setenv("ECHO_PORT", std::to_string(port_).c_str(), 1);
      ::setenv("ECHO_CLIENTS", std::to_string(clients).c_str(), 1);
      ::execlp("python3", "python3", TENSORBUS_BENCH_DIRECTORY "/tcp_echo.py", role.c_str(),
               nullptr);
      os::throw_errno("python3");
    }));
  }
  os::Fd connect() const {
    const Deadline patience = Deadline::after(std::chrono::seconds(30));
    for (;;) {
      try {
        return os::connect_tcp(host_, port_, patience);
      } catch (const Error&) {  // it does not listen yet
        if (patience.expired()) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }

  std::string host_;
  const fabric::TwoHosts* hosts_;
  std::uint16_t port_ = 0;
  std::vector<std::unique_ptr<fabric::Child>> children_;
  os::Fd socket_;
  std::vector<std::byte> message_;
};

}  // namespace tensorbus::bench
