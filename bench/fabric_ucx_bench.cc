// The network fabric against a plain TCP socket, between two network namespaces: both move the same
// 256 MiB from memory to memory, and 64 bytes there and back. Needs root.
#include <fmt/core.h>
#include <sys/socket.h>

#include <vector>

#include "fabric/conformance/two_hosts.h"
#include "fabric/ucx/ucx.h"
#include "fabric_loop.h"
#include "os/net/tcp.h"
#include "plain_socket.h"
#include "rows.h"

namespace tensorbus::bench {
namespace {

using fabric::TwoHosts;

constexpr std::size_t stream_bytes = std::size_t{256} << 20;
constexpr std::uint16_t socket_port = 7070;
// What the reader tells the owner of the socket.
constexpr char send_it_all = 'x';
constexpr char send_it_back = 'e';

std::unique_ptr<fabric::Fabric> make(int host) {
  fabric::UcxOptions options;
  options.identity = {"host", ::getpid(), 1, random_id(), host == 0 ? "reader" : "owner"};
  options.secret = "secret";
  options.bind = TwoHosts::address(host);
  return fabric::make_ucx_fabric(options);
}

// Echoes messages and shows its memory; does the same through the socket.
void be_the_owner(const TwoHosts& hosts, const fabric::Pipe& up) {
  hosts.enter(1);
  std::vector<std::byte> memory(stream_bytes, std::byte{1});
  const auto fabric = make(1);
  const Shape shape{static_cast<std::int64_t>(memory.size())};
  const Shape strides{1};
  const TensorView view{memory.data(), Dtype::uint8, shape, strides};
  const auto region = fabric->expose(std::span(&view, 1));
  const os::Fd listener = os::listen_tcp(TwoHosts::address(1), socket_port);
  up.put(encode(fabric->address()));
  std::array<pollfd, 1> waiting{pollfd{listener.get(), POLLIN, 0}};
  os::wait_ready(waiting, Deadline::never());
  const os::Fd socket(::accept(listener.get(), nullptr, nullptr));
  os::tune_stream(socket);
  for (;;) {
    step(*fabric, socket.get(), [&](const fabric::Event& event) { echo(*fabric, event); });
    std::array<std::byte, 64> told{};
    while (::recv(socket.get(), told.data(), told.size(), MSG_DONTWAIT) > 0) {
      const bool all = told[0] == static_cast<std::byte>(send_it_all);
      if (all) {
        send_all(socket, memory.data(), memory.size());
        break;
      }
      send_all(socket, told.data(), told.size());
      pollfd next{socket.get(), POLLIN, 0};
      // The floor of a round trip is a process that waits for nothing else.
      ::poll(&next, 1, 100);
    }
  }
}

class Bench {
 public:
  // The owner takes the socket first.
  Bench(const fabric::Child& owner, const fabric::Address& address)
      : owner_(owner),
        target_(stream_bytes),
        socket_(os::connect_tcp(TwoHosts::address(1), socket_port, Deadline::never())),
        client_(make(0), address) {
    make_blocking(socket_);
  }

  std::vector<Row> run() { return {stream(), round_trip(), idle(client_, owner_.pid())}; }

 private:
  Row stream() {
    const fabric::Source source = client_.attach(1);
    const std::array types{Dtype::uint8};
    const auto whole =
        std::make_shared<plan::Stream>(fabric::whole_stream(source.region->forms(), types));
    const Shape shape{static_cast<std::int64_t>(target_.size())};
    const Shape strides{1};
    const TensorView target{target_.data(), Dtype::uint8, shape, strides};
    constexpr double gigabytes = static_cast<double>(stream_bytes) / 1e9;
    Row row{"network stream, 256 MiB", "plain TCP socket", "GB/s"};
    row.at_least = 0.95;
    const auto socket = [&] {
      const TimePoint start = now();
      tell(send_it_all);
      receive_all(socket_, target_.data(), target_.size());
      return gigabytes / seconds_since(start);
    };
    return measure(std::move(row), 15, socket, [&] {
      return gigabytes / client_.read(whole, source, {&target, 1});
    });
  }

  Row round_trip() {
    constexpr int trips = 2000;
    const auto socket = [&] {
      const TimePoint start = now();
      std::array<std::byte, 64> message;
      for (int i = 0; i < trips; ++i) {
        tell(send_it_back);
        receive_all(socket_, message.data(), message.size());
      }
      return seconds_since(start) / trips * 1e6;
    };
    const Row row{"network message of 64 B, round trip", "plain TCP socket", "us"};
    return measure(row, 15, socket, [&] { return client_.round_trips(trips) * 1e6; });
  }

  void tell(char what) {
    std::array<std::byte, 64> message{};
    message[0] = static_cast<std::byte>(what);
    send_all(socket_, message.data(), message.size());
  }

  const fabric::Child& owner_;
  std::vector<std::byte> target_;
  const os::Fd socket_;
  Client client_;
};

int run(int argc, char** argv) {
  if (const std::string why = TwoHosts::unavailable(); !why.empty()) {
    fmt::print("skipped: {}\n", why);
    return report({}, argc, argv);
  }
  const fabric::NamespaceGuard guard;
  const TwoHosts hosts;
  const fabric::Pipe up;
  const fabric::Child owner([&] { be_the_owner(hosts, up); });
  hosts.enter(0);
  fmt::print("{}, between two network namespaces\n", fabric::describe_ucx());
  return report(Bench(owner, fabric::decode_address(up.get())).run(), argc, argv);
}

}  // namespace
}  // namespace tensorbus::bench

int main(int argc, char** argv) { return tensorbus::bench::run(argc, argv); }
