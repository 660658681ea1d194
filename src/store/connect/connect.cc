#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "base/log.h"
#include "os/net/tcp.h"
#include "store/etcd/store.h"
#include "store/native/memory_store.h"
#include "store/native/remote_store.h"
#include "store/protocol/handshake.h"
#include "store/torch/store.h"

namespace tensorbus {
namespace {

// A torch server that does not know our hello may also just keep silent.
constexpr auto hello_patience = std::chrono::seconds(1);

ConnectOptions with_token(const ConnectOptions& options) {
  ConnectOptions completed = options;
  if (!completed.token) completed.token = config::variable("TENSORBUS_TOKEN");
  return completed;
}

[[noreturn]] void refuse_token(const std::string& server) {
  throw Error(
      Code::denied,
      fmt::format("there is a token, which torch's protocol cannot carry, so that {} cannot "
                  "show that it knows it; connect without, or to a tensorbus:// server",
                  server));
}

}  // namespace

std::unique_ptr<Store> connect(const StoreUrl& url, const ConnectOptions& options) {
  switch (url.scheme) {
    case StoreUrl::Scheme::memory:
      return store::connect_memory(url.hosts.front().name);
    case StoreUrl::Scheme::tensorbus:
      return std::make_unique<store::RemoteStore>(url.hosts.front(), with_token(options));
    case StoreUrl::Scheme::tcpstore:
      if (options.token)
        refuse_token(os::host_port(url.hosts.front().name, url.hosts.front().port));
      return store::connect_torch(url.hosts.front(), options);
    case StoreUrl::Scheme::etcd:
      return store::connect_etcd(url, options);
  }
  throw Error(Code::unsupported, url.to_string());
}

std::unique_ptr<Store> connect_tcp(const StoreUrl::Host& host, const ConnectOptions& options) {
  const ConnectOptions completed = with_token(options);
  const Id16 session = random_id();
  Duration pause = std::chrono::milliseconds(10);
  while (true) {
    os::Fd socket;
    try {
      socket = os::connect_tcp(host.name, host.port, completed.deadline);
    } catch (const Error& error) {
      // Not there yet, perhaps.
      if (error.code() != Code::unreachable || completed.deadline.expired()) throw;
      os::wait_ready({}, sooner(completed.deadline, Deadline::after(pause)));
      pause = std::min<Duration>(2 * pause, std::chrono::milliseconds(500));
      continue;
    }
    try {
      const Deadline patience = completed.token
                                    ? completed.deadline
                                    : sooner(completed.deadline, Deadline::after(hello_patience));
      const store::Hello server =
          store::shake_hands(socket, session, completed.token, patience, nullptr);
      return std::make_unique<store::RemoteStore>(host, completed, session, std::move(socket),
                                                  server);
    } catch (const Error& error) {
      if (error.code() != Code::unreachable) throw;
      if (completed.token) refuse_token(os::host_port(host.name, host.port));
      log::info("{} does not speak our protocol ({}); using torch's",
                os::host_port(host.name, host.port), error.what());
      return store::connect_torch(host, completed);
    }
  }
}

}  // namespace tensorbus
