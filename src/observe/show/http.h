// Pages of this process over HTTP, on threads of its own: a client that sends nothing, or reads
// nothing, keeps nobody but these threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace tensorbus::observe {

struct PageRequest {
  std::string accept;                               // the header
  std::string authorization;                        // the header
  std::map<std::string, std::string> parameters{};  // of the address, behind its "?"
};

struct PageAnswer {
  std::string body;
  std::string type = "text/plain; charset=utf-8";
  int status = 200;
  std::map<std::string, std::string> headers{};
};

// By path. Called on any of the threads.
using Pages = std::map<std::string, std::function<PageAnswer(const PageRequest&)>>;

// HOST:PORT; an IPv6 address stands in brackets. Error(invalid_argument) for anything else.
struct PageAddress {
  std::string host;
  std::uint16_t port = 0;
};
PageAddress parse_page_address(const std::string& text);

class HttpServer {
 public:
  // Port 0: one that is free. Error(failed) if the address cannot be listened on.
  // `keep` is let go when it has ended.
  HttpServer(const PageAddress& address, Pages pages, std::shared_ptr<void> keep = nullptr);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const noexcept;
  // "http://127.0.0.1:9400"
  std::string url() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorbus::observe
