#include "observe/show/http.h"

#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <charconv>
#include <optional>
#include <thread>

#include "os/process/process.h"
#include "tensorbus/status.h"

namespace tensorbus::observe {
namespace {

constexpr std::size_t threads = 4;
// For a request to come and an answer to be taken; also how long a silent client delays the end.
constexpr std::chrono::seconds patience{1};
constexpr std::size_t largest_request = 1 << 16;

std::optional<std::uint16_t> port_in(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return port;
}

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
  httplib::Server server;
  std::atomic<bool> ended{false};
  std::thread thread;
};

HttpServer::HttpServer(const PageAddress& address, Pages pages) : impl_(std::make_unique<Impl>()) {
  httplib::Server& server = impl_->server;
  impl_->host = address.host;
  server.new_task_queue = [] { return new httplib::ThreadPool(threads); };
  server.set_read_timeout(patience);
  server.set_write_timeout(patience);
  server.set_keep_alive_max_count(1);
  server.set_payload_max_length(largest_request);
  // The library would let several processes share a port, and a scraper would get either's numbers.
  server.set_socket_options([](int socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  for (auto& [path, page] : pages) {
    server.Get(path, [page = std::move(page)](const httplib::Request& request,
                                              httplib::Response& response) {
      PageAnswer answer =
          page({request.get_header_value("Accept"), request.get_header_value("Authorization")});
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
    // Also because the library writes without MSG_NOSIGNAL; its threads inherit it.
    os::block_signals_in_this_thread();
    impl.server.listen_after_bind();
    impl.ended = true;
  });
}

HttpServer::~HttpServer() {
  // The library forgets a stop() that comes before its thread has begun.
  while (!impl_->server.is_running() && !impl_->ended) std::this_thread::yield();
  impl_->server.stop();
  impl_->thread.join();
}

std::uint16_t HttpServer::port() const noexcept { return impl_->port; }

std::string HttpServer::url() const {
  const bool brackets = impl_->host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", brackets ? "[" : "", impl_->host, brackets ? "]" : "",
                     impl_->port);
}

}  // namespace tensorbus::observe
