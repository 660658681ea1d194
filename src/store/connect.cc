#include <fmt/format.h>

#include "base/config.h"
#include "os/tcp.h"
#include "store/handshake.h"
#include "store/memory_store.h"
#include "store/remote_store.h"

namespace tensorbus {
namespace {

// A torch server that does not know our hello may also just keep silent.
constexpr auto hello_patience = std::chrono::seconds(1);

ConnectOptions with_token(const ConnectOptions& options) {
  ConnectOptions completed = options;
  if (!completed.token) completed.token = config::variable("TENSORBUS_TOKEN");
  return completed;
}

}  // namespace

std::unique_ptr<Store> connect(const StoreUrl& url, const ConnectOptions& options) {
  switch (url.scheme) {
    case StoreUrl::Scheme::memory:
      return store::connect_memory(url.hosts.front().name);
    case StoreUrl::Scheme::tensorbus:
      return std::make_unique<store::RemoteStore>(url.hosts.front(), with_token(options));
    case StoreUrl::Scheme::tcpstore:
    case StoreUrl::Scheme::etcd:
      break;
  }
  throw Error(Code::unsupported, url.to_string());
}

}  // namespace tensorbus
