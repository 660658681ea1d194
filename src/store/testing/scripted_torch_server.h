// For tests: a server that follows a script, connection by connection, so that the moments that are
// rare with a real one can be had at will.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/testing/calls.h"
#include "os/io/poll.h"
#include "os/net/tcp.h"
#include "store/protocol/torch_writer.h"
#include "store/torch/store.h"

namespace tensorbus::store {

// The server's end of one connection. A client that does not do what the script expects fails the
// test and ends the script.
class ScriptedPeer {
 public:
  ScriptedPeer(os::Fd socket, const os::EventFd& stop) : socket_(std::move(socket)), stop_(stop) {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  void expect(const TorchWriter& request) {
    const std::string got = receive(request.bytes().size());
    if (got != request.bytes()) throw std::runtime_error("another request than the script expects");
  }
  // A request of which only the end, a PING, is not known beforehand.
  void expect_and_ping(const TorchWriter& request) {
    expect(request);
    expect_op(TorchOp::ping);
    nonce_ = receive(sizeof(std::uint32_t));
  }
  void hello() {
    expect_and_ping(TorchWriter().validate());
    pong();
  }
  void pong() { send(nonce_); }
  void send(std::string_view bytes) {
    ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Each byte a packet of its own.
  void send_slowly(std::string_view bytes) {
    for (const char byte : bytes) {
      send({&byte, 1});
      std::this_thread::yield();
    }
  }
  template <Integer T>
  void send_integer(T value) {
    send(Encoder().integer(value).bytes());
  }
  void send_text(std::string_view text) {
    send(Encoder().integer(std::uint64_t{text.size()}).raw(text).bytes());
  }
  void answer_check(std::string_view key, bool exists) {
    expect(TorchWriter().check(key));
    send_integer(std::uint8_t{!exists});
  }
  // A client's look at one key that exists.
  void answer_value(const std::string& key, std::string_view value) {
    answer_check(key, true);
    expect(TorchWriter().multi_get({&key, 1}).check(key));
    send_text(value);
    send_integer(std::uint8_t{0});
  }
  // False when the client has hung up or the test is over.
  bool more_comes() {
    char byte = 0;
    return wait() && ::recv(socket_.get(), &byte, 1, MSG_PEEK) > 0;
  }
  void hang_up() { socket_.reset(); }
  void expect_op(TorchOp op) {
    if (receive(1)[0] != static_cast<char>(op)) throw std::runtime_error("another opcode");
  }
  std::string receive_text() {
    std::uint64_t size = 0;
    std::memcpy(&size, receive(sizeof size).data(), sizeof size);
    return receive(size);
  }
  void expect_close() {
    if (more_comes()) throw std::runtime_error("more than was expected");
  }

 private:
  // False when the test is over.
  bool wait() {
    std::array<pollfd, 2> descriptors{pollfd{socket_.get(), POLLIN, 0},
                                      pollfd{stop_.get(), POLLIN, 0}};
    if (!os::wait_ready(descriptors, Deadline::after(std::chrono::seconds(20)))) {
      throw std::runtime_error("the client is silent");
    }
    return descriptors[0].revents != 0;
  }
  std::string receive(std::size_t size) {
    std::string got;
    while (got.size() < size) {
      if (!wait()) throw std::runtime_error("the test is over");
      std::string more(size - got.size(), '\0');
      const auto count = ::recv(socket_.get(), more.data(), more.size(), MSG_DONTWAIT);
      if (count <= 0) throw std::runtime_error("the client hung up");
      got.append(more, 0, static_cast<std::size_t>(count));
    }
    return got;
  }

  os::Fd socket_;
  const os::EventFd& stop_;
  std::string nonce_;
};

class ScriptedTorchServer {
 public:
  using Script = std::function<void(ScriptedPeer&)>;

  // One script per connection, in the order in which connections come. All must be played to their
  // end.
  explicit ScriptedTorchServer(std::vector<Script> scripts, std::uint16_t port = 0)
      : listener_(os::listen_tcp("127.0.0.1", port)),
        thread_([this, scripts = std::move(scripts)] { run(scripts); }) {}

  ~ScriptedTorchServer() {
    stop_.signal();
    thread_.join();
  }

  StoreUrl::Host host() const { return {"127.0.0.1", os::local_port(listener_)}; }

 private:
  void run(const std::vector<Script>& scripts) {
    std::vector<std::jthread> peers;
    for (const Script& script : scripts) {
      std::array<pollfd, 2> descriptors{pollfd{listener_.get(), POLLIN, 0},
                                        pollfd{stop_.get(), POLLIN, 0}};
      os::wait_ready(descriptors, Deadline::never());
      if (descriptors[0].revents == 0) {
        ADD_FAILURE() << "fewer connections than scripts";
        break;
      }
      os::Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      peers.emplace_back([this, &script, connection = std::move(socket)]() mutable {
        ScriptedPeer peer(std::move(connection), stop_);
        try {
          script(peer);
        } catch (const std::exception& deviation) {
          ADD_FAILURE() << "script: " << deviation.what();
        }
      });
    }
  }

  os::EventFd stop_;
  os::Fd listener_;
  std::thread thread_;
};

inline std::unique_ptr<Store> connect_to(const ScriptedTorchServer& server) {
  return connect_torch(server.host(), {soon(), {}});
}

}  // namespace tensorbus::store
