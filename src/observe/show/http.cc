#include "observe/show/http.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <httplib.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <optional>
#include <semaphore>
#include <thread>

#include "observe/show/visit.h"
#include "os/io/poll.h"
#include "os/process/fork.h"
#include "os/process/process.h"
#include "tensorbus/status.h"

namespace tensorbus::observe {
namespace {

constexpr std::size_t threads = 4;
// Connections that are served or wait for a thread; later ones wait in the listener's queue.
constexpr std::ptrdiff_t most_visits = 32;
// For a request to come, and again for its answer to be taken.
constexpr Duration patience = std::chrono::seconds(2);

std::optional<std::uint16_t> port_in(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return port;
}

bool is_loopback(const std::string& host) {
  in_addr address{};
  const bool is_address = ::inet_pton(AF_INET, host.c_str(), &address) == 1;
  return host == "localhost" || host == "::1" ||
         (is_address && ntohl(address.s_addr) >> 24 == IN_LOOPBACKNET);
}

std::string host_in(const std::string& header) {
  if (header.starts_with('[')) return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.find(':'));
}

// A name that somebody else's DNS has pointed at this machine is how a page from elsewhere would
// have a browser here read ours: what is for this machine alone must be asked for by its name.
bool may_ask(const std::string& bound_to, const std::string& host) {
  return !is_loopback(bound_to) || host.empty() || host_in(host) == bound_to ||
         is_loopback(host_in(host));
}

// Threads that serve, and an end to how many connections wait for one.
class Visits final : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> serve) override {
    places_.acquire();
    pool_.enqueue([this, serve = std::move(serve)] {
      serve();
      places_.release();
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  std::counting_semaphore<most_visits> places_{most_visits};
  httplib::ThreadPool pool_{threads};
};

class Listener final : public httplib::Server {
 public:
  void stop_all() {
    stopping_.signal();
    stop();
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    Visit visit(socket, stopping_.get(), patience);
    bool closed = true;
    const bool served = process_request(visit, true, closed, nullptr);
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
    return served;
  }

  os::EventFd stopping_;
};

}  // namespace

PageAddress parse_page_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const auto port =
      colon == std::string::npos ? std::nullopt : port_in(std::string_view(text).substr(colon + 1));
  std::string host = text.substr(0, port ? colon : 0);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (!port || host.empty()) {
    throw Error(Code::invalid_argument,
                fmt::format("\"{}\" is no address of a page; write HOST:PORT, for example "
                            "127.0.0.1:9400, or port 0 for one that is free",
                            text));
  }
  return {std::move(host), *port};
}

struct HttpServer::Impl {
  std::string host;
  std::uint16_t port = 0;
  const unsigned made_in = os::fork_generation();
  std::shared_ptr<void> keep;
  Listener server;
  std::atomic<bool> ended{false};
  std::thread thread;
};

HttpServer::HttpServer(const PageAddress& address, Pages pages, std::shared_ptr<void> keep)
    : impl_(std::make_unique<Impl>()) {
  impl_->keep = std::move(keep);
  httplib::Server& server = impl_->server;
  impl_->host = address.host;
  server.new_task_queue = [] { return new Visits; };
  server.set_pre_routing_handler(
      [host = address.host](const httplib::Request& request, httplib::Response& response) {
        if (may_ask(host, request.get_header_value("Host"))) {
          return httplib::Server::HandlerResponse::Unhandled;
        }
        response.status = 403;
        response.set_content("this page is asked for by the name of this machine\n", "text/plain");
        return httplib::Server::HandlerResponse::Handled;
      });
  // The library would let several processes share a port, and a scraper would get either's numbers.
  server.set_socket_options([](int socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  for (auto& [path, page] : pages) {
    server.Get(path, [page = std::move(page)](const httplib::Request& request,
                                              httplib::Response& response) {
      PageRequest asked{request.get_header_value("Accept"),
                        request.get_header_value("Authorization")};
      for (const auto& [name, value] : request.params) asked.parameters[name] = value;
      PageAnswer answer = page(asked);
      response.status = answer.status;
      for (const auto& [name, value] : answer.headers) response.set_header(name.c_str(), value);
      response.set_content(std::move(answer.body), answer.type.c_str());
    });
  }
  const int port = address.port == 0 ? server.bind_to_any_port(address.host.c_str())
                   : server.bind_to_port(address.host.c_str(), address.port) ? address.port
                                                                             : -1;
  if (port <= 0) {
    throw Error(Code::failed, fmt::format("{}:{} cannot be listened on: another process has it, or "
                                          "the address is none of this machine",
                                          address.host, address.port));
  }
  impl_->port = static_cast<std::uint16_t>(port);
  impl_->thread = std::thread([&impl = *impl_] {
    os::block_signals_in_this_thread();
    impl.server.listen_after_bind();
    impl.ended = true;
  });
}

HttpServer::~HttpServer() {
  if (os::fork_generation() != impl_->made_in) {
    // A forked child has none of its threads, and its locks as they were.
    [[maybe_unused]] const Impl* const lost = impl_.release();
    return;
  }
  // The library forgets a stop() that comes before its thread has begun.
  while (!impl_->server.is_running() && !impl_->ended) std::this_thread::yield();
  impl_->server.stop_all();
  impl_->thread.join();
}

std::uint16_t HttpServer::port() const noexcept { return impl_->port; }

std::string HttpServer::url() const {
  const bool brackets = impl_->host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", brackets ? "[" : "", impl_->host, brackets ? "]" : "",
                     impl_->port);
}

}  // namespace tensorbus::observe
