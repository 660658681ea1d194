// A TCP proxy in front of etcd that loses answers and delays requests.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "os/io/poll.h"
#include "os/net/tcp.h"
#include "tensorbus/store.h"

namespace tensorbus::store {

class LossyProxy {
 public:
  explicit LossyProxy(std::uint16_t target)
      : target_(target), listener_(os::listen_tcp("127.0.0.1", 0)) {
    port_ = os::local_port(listener_);
    thread_ = std::thread([this] { run(); });
  }
  ~LossyProxy() {
    stopped_ = true;
    wake_.signal();
    thread_.join();
  }
  LossyProxy(const LossyProxy&) = delete;
  LossyProxy& operator=(const LossyProxy&) = delete;

  StoreUrl url() const { return StoreUrl::parse("etcd://127.0.0.1:" + std::to_string(port_)); }

  // The next transactions reach etcd, but their connections break before the answer passes.
  void lose_answers(int count) { lose_ = count; }
  // The next transaction is kept back, and its connection breaks.
  void hold_request() { hold_ = 1; }
  // Breaks every connection and takes no new one.
  void refuse(bool on) {
    refuse_ = on;
    wake_.signal();
  }
  int lost() const { return lost_; }
  // Delivers what was kept back, and returns etcd's answer.
  std::string deliver_held() {
    std::string request;
    {
      const std::lock_guard lock(mutex_);
      request = std::exchange(held_, {});
    }
    if (request.empty()) return {};
    const Deadline deadline = Deadline::after(std::chrono::seconds(5));
    const os::Fd server = os::connect_tcp("127.0.0.1", target_, deadline);
    send_all(server, request);
    std::string answer;
    pollfd ready{server.get(), POLLIN, 0};
    while (answer.find("\r\n\r\n") == std::string::npos && os::wait_ready({&ready, 1}, deadline)) {
      const std::string bytes = receive(server);
      if (bytes.empty()) break;
      answer += bytes;
    }
    return answer;
  }

 private:
  enum class Fate { pass, lose_answer, hold_request };
  struct Pair {
    os::Fd client;
    os::Fd server;
    Fate fate = Fate::pass;
    std::string kept;
    bool over = false;
  };

  static void send_all(const os::Fd& socket, std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) return;
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
      if (sent < 0) {
        pollfd ready{socket.get(), POLLOUT, 0};
        os::wait_ready({&ready, 1}, Deadline::after(std::chrono::seconds(5)));
      }
    }
  }
  static std::string receive(const os::Fd& socket) {
    std::string bytes(64 * 1024, '\0');
    const auto got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }
  static bool complete(const std::string& request) {
    const auto head = request.find("\r\n\r\n");
    const auto field = request.find("Content-Length: ");
    if (head == std::string::npos || field == std::string::npos) return false;
    std::size_t length = 0;
    std::from_chars(request.data() + field + 16, request.data() + head, length);
    return request.size() >= head + 4 + length;
  }

  void run() {
    std::list<Pair> pairs;
    while (!stopped_) {
      std::vector<pollfd> ready{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs) {
        ready.push_back({pair.client.get(), POLLIN, 0});
        ready.push_back({pair.server.get(), POLLIN, 0});
      }
      os::wait_ready(ready, Deadline::never());
      wake_.drain();
      if (refuse_) pairs.clear();
      std::size_t at = 2;
      // The list is that of before, or empty.
      for (Pair& pair : pairs) {
        if (ready[at].revents != 0) from_client(pair);
        if (!pair.over && ready[at + 1].revents != 0) from_server(pair);
        at += 2;
      }
      pairs.remove_if([](const Pair& pair) { return pair.over; });
      if (ready[1].revents != 0) accept(pairs);
    }
  }
  void accept(std::list<Pair>& pairs) {
    os::Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client || refuse_) return;
    try {
      auto server = os::connect_tcp("127.0.0.1", target_, Deadline::after(std::chrono::seconds(1)));
      pairs.push_back({std::move(client), std::move(server), Fate::pass, {}, false});
    } catch (const Error&) {
      // The client sees a closed connection, as it would without the proxy.
    }
  }
  void from_client(Pair& pair) {
    const std::string bytes = receive(pair.client);
    pair.over = bytes.empty();
    if (bytes.starts_with("POST /v3/kv/txn")) {
      if (hold_ > 0) {
        --hold_;
        pair.fate = Fate::hold_request;
      } else if (lose_ > 0) {
        --lose_;
        pair.fate = Fate::lose_answer;
      }
    }
    if (pair.fate != Fate::hold_request) {
      send_all(pair.server, bytes);
      return;
    }
    pair.kept += bytes;
    if (!complete(pair.kept)) return;
    const std::lock_guard lock(mutex_);
    held_ = std::move(pair.kept);
    pair.over = true;
    ++lost_;
  }
  void from_server(Pair& pair) {
    const std::string bytes = receive(pair.server);
    pair.over = bytes.empty() || pair.fate == Fate::lose_answer;
    if (pair.fate == Fate::lose_answer) {
      ++lost_;
    } else {
      send_all(pair.client, bytes);
    }
  }

  const std::uint16_t target_;
  os::Fd listener_;
  std::uint16_t port_ = 0;
  os::EventFd wake_;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> refuse_ = false;
  std::atomic<int> lose_ = 0;
  std::atomic<int> hold_ = 0;
  std::atomic<int> lost_ = 0;
  std::mutex mutex_;
  std::string held_;
  std::thread thread_;
};

}  // namespace tensorbus::store
