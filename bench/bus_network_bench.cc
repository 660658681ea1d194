// A round of the bus between two network namespaces against a plain TCP socket: both move the same
// 256 MiB from memory to memory. Needs root.
#include <fmt/core.h>

#include <array>
#include <vector>

#include "bus_crew.h"
#include "os/io/poll.h"
#include "os/net/tcp.h"
#include "plain_socket.h"
#include "rows.h"
#include "tensorbus/bus.h"

namespace tensorbus::bench {
namespace {

using fabric::TwoHosts;

constexpr std::size_t bytes = std::size_t{256} << 20;
constexpr std::uint16_t socket_port = 7071;

// A rank on a host, with all of the tensor.
class End {
 public:
  End(const std::string& store, int host) : memory_(bytes / sizeof(float), 1.0F) {
    BusOptions options;
    options.rank = host;
    options.bind = TwoHosts::address(host);
    bus_.emplace(store, options);
    const bool sends = host == 1;
    bus_->init_pair({"p", sends ? "from" : "to", sends ? "to" : "from", 1, {1}, {Replicate{}}},
                    soon());
    BusTensor tensor;
    tensor.data = memory_.data();
    tensor.shape = {static_cast<std::int64_t>(memory_.size())};
    tensor.pair = "p";
    batch_.emplace(bus_->register_tensors("b", std::span(&tensor, 1), soon()));
  }
  BusBatch& batch() { return *batch_; }
  std::byte* memory() { return reinterpret_cast<std::byte*>(memory_.data()); }

 private:
  std::vector<float> memory_;
  std::optional<Bus> bus_;
  std::optional<BusBatch> batch_;
};

void be_the_sender(const TwoHosts& hosts, const Crew::Member& self) {
  hosts.enter(1);
  const os::Fd listener = os::listen_tcp(TwoHosts::address(1), socket_port);
  self.answers.put("listens");
  End end(hear(self.orders), 1);
  std::array<pollfd, 1> waiting{pollfd{listener.get(), POLLIN, 0}};
  os::wait_ready(waiting, Deadline::never());
  const os::Fd socket(::accept(listener.get(), nullptr, nullptr));
  os::tune_stream(socket);
  for (;;) {
    if (hear(self.orders) == "socket") {
      send_all(socket, end.memory(), bytes);
    } else {
      end.batch().send(soon());
    }
  }
}

int run(int argc, char** argv) {
  if (const std::string why = TwoHosts::unavailable(); !why.empty()) {
    fmt::print("skipped: {}\n", why);
    return report({}, argc, argv);
  }
  const fabric::NamespaceGuard guard;
  const TwoHosts hosts;
  Crew crew;
  crew.add(1, [&](const Crew::Member& self) { be_the_sender(hosts, self); });
  crew.await();
  hosts.enter(0);
  StoreServerOptions options;
  options.host = TwoHosts::address(0);
  options.port = 0;
  const StoreServer server(options);
  crew.tell(server.url());
  End end(server.url(), 0);
  const os::Fd socket = os::connect_tcp(TwoHosts::address(1), socket_port, soon());
  make_blocking(socket);

  constexpr double gigabytes = static_cast<double>(bytes) / 1e9;
  Row row{"between two hosts, 256 MiB", "plain TCP socket", "GB/s"};
  row.at_least = 0.9;
  const auto by_socket = [&] {
    const TimePoint start = now();
    crew.tell("socket");
    receive_all(socket, end.memory(), bytes);
    return gigabytes / seconds_since(start);
  };
  const auto by_bus = [&] {
    const TimePoint start = now();
    crew.tell("bus");
    end.batch().recv(soon());
    return gigabytes / seconds_since(start);
  };
  return report({measure(row, 11, by_socket, by_bus)}, argc, argv);
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) { return tensorbus::bench::run(argc, argv); }
