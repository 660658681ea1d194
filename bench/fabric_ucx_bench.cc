// The network fabric against a plain TCP socket, between two network namespaces. Both move the same
// 256 MiB from memory to memory, in turns, so that both see the same weather; what counts is the
// ratio. Needs root.
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "base/clock.h"
#include "fabric/two_hosts.h"
#include "fabric/ucx.h"
#include "os/poll.h"
#include "os/tcp.h"

namespace tensorbus::fabric {
namespace {

constexpr std::size_t stream_bytes = std::size_t{256} << 20;
constexpr int rounds = 9;
constexpr int round_trips = 5000;
constexpr std::uint16_t socket_port = 7070;
// Before a sleep: a wake-up costs more than this.
constexpr Duration spin_time = std::chrono::microseconds(50);

std::unique_ptr<Fabric> make(int host) {
  UcxOptions options;
  options.identity = {"host", ::getpid(), 1, random_id(), host == 0 ? "reader" : "owner"};
  options.secret = "secret";
  options.bind = TwoHosts::address(host);
  return make_ucx_fabric(options);
}

// Spins, then sleeps, until an event came or `also` is readable.
template <typename Handler>
void step(Fabric& fabric, int also, Handler handle) {
  const TimePoint sleep_at = now() + spin_time;
  for (;;) {
    const std::span<const Event> events = fabric.poll();
    for (const Event& event : events) handle(event);
    if (!events.empty()) return;
    if (now() < sleep_at || !fabric.arm()) continue;
    std::array<pollfd, 2> fds{pollfd{fabric.fd(), POLLIN, 0}, pollfd{also, POLLIN, 0}};
    os::sleep_ready(fds, Deadline(fabric.wake_at()));
    if (fds[1].revents != 0) return;
  }
}

void make_blocking(const os::Fd& socket) {
  std::array<pollfd, 1> fds{pollfd{socket.get(), POLLOUT, 0}};
  os::wait_ready(fds, Deadline::never());
  if (::fcntl(socket.get(), F_SETFL, 0) != 0) os::throw_errno("fcntl");
}

// Echoes messages, shows its memory, and sends it through the socket for every byte that comes.
void be_the_owner(const TwoHosts& hosts, const Pipe& up) {
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
  for (;;) {
    step(*fabric, socket.get(), [&](const Event& event) {
      if (const auto* message = std::get_if<Message>(&event)) {
        fabric->send(*message->from, std::as_bytes(std::span(message->bytes)));
      }
    });
    char byte = 0;
    const ssize_t got = ::recv(socket.get(), &byte, 1, MSG_DONTWAIT);
    if (got == 0) return;
    for (std::size_t sent = 0; got == 1 && sent < memory.size();) {
      const ssize_t count =
          ::send(socket.get(), memory.data() + sent, memory.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<std::size_t>(count);
    }
  }
}

class Reader {
 public:
  Reader(const Address& owner) : fabric_(make(0)), target_(stream_bytes) {
    socket_ = os::connect_tcp(TwoHosts::address(1), socket_port, Deadline::never());
    make_blocking(socket_);
    peer_ = fabric_->connect(owner, "secret", Deadline::never());
    until([&] { return peer_->up(); });
    fabric_->attach(*peer_, 1, OpId{1}, Deadline::never());
    until([&] { return completion_.region != nullptr; });
    region_ = completion_.region;
  }

  double socket_seconds() {
    const TimePoint start = now();
    if (::send(socket_.get(), "x", 1, MSG_NOSIGNAL) != 1) os::throw_errno("send");
    for (std::size_t got = 0; got < target_.size();) {
      const ssize_t count = ::recv(socket_.get(), target_.data() + got, target_.size() - got, 0);
      if (count <= 0) os::throw_errno("recv");
      got += static_cast<std::size_t>(count);
    }
    return std::chrono::duration<double>(now() - start).count();
  }

  double fabric_seconds() {
    const Shape shape{static_cast<std::int64_t>(target_.size())};
    const Shape strides{1};
    const std::array types{Dtype::uint8};
    const TensorView view{target_.data(), Dtype::uint8, shape, strides};
    const TimePoint start = now();
    completion_ = {};
    fabric_->read({std::make_shared<plan::Stream>(whole_stream(region_->forms(), types)),
                   0,
                   {{peer_, region_, 0}},
                   {view}},
                  OpId{2}, Deadline::never());
    until([&] { return completion_.id == OpId{2}; });
    if (!completion_.status.ok()) throw Error(completion_.status);
    return std::chrono::duration<double>(now() - start).count();
  }

  double round_trip_seconds() {
    const std::array<std::byte, 64> message{};
    const TimePoint start = now();
    messages_ = 0;
    fabric_->send(*peer_, message);
    until([&] { return messages_ == 1; });
    return std::chrono::duration<double>(now() - start).count();
  }

 private:
  template <typename Condition>
  void until(Condition holds) {
    while (!holds()) {
      step(*fabric_, -1, [&](const Event& event) {
        if (const auto* done = std::get_if<Completion>(&event)) completion_ = *done;
        if (std::holds_alternative<Message>(event)) ++messages_;
        if (const auto* lost = std::get_if<PeerLost>(&event)) throw Error(lost->reason);
      });
    }
  }

  std::unique_ptr<Fabric> fabric_;
  std::vector<std::byte> target_;
  os::Fd socket_;
  std::shared_ptr<Peer> peer_;
  std::shared_ptr<const RemoteRegion> region_;
  Completion completion_;
  int messages_ = 0;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int run() {
  if (const std::string why = TwoHosts::unavailable(); !why.empty()) {
    fmt::print("skipped: {}\n", why);
    return 0;
  }
  const NamespaceGuard guard;
  const TwoHosts hosts;
  const Pipe up;
  const Child owner([&] { be_the_owner(hosts, up); });
  hosts.enter(0);
  Reader reader(decode_address(up.get()));
  reader.socket_seconds();  // page faults
  reader.fabric_seconds();
  std::vector<double> socket_speeds;
  std::vector<double> fabric_speeds;
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    const double gigabytes = static_cast<double>(stream_bytes) / 1e9;
    socket_speeds.push_back(gigabytes / reader.socket_seconds());
    fabric_speeds.push_back(gigabytes / reader.fabric_seconds());
    ratios.push_back(fabric_speeds.back() / socket_speeds.back());
  }
  std::vector<double> trips;
  for (int i = 0; i < round_trips; ++i) trips.push_back(reader.round_trip_seconds());
  fmt::print("{}, 256 MiB between two network namespaces, median of {} rounds\n", describe_ucx(),
             rounds);
  fmt::print("  plain socket   {:5.2f} GB/s\n", median(socket_speeds));
  fmt::print("  network fabric {:5.2f} GB/s\n", median(fabric_speeds));
  fmt::print("  ratio          {:5.2f} (from {:.2f} to {:.2f})\n", median(ratios),
             *std::ranges::min_element(ratios), *std::ranges::max_element(ratios));
  fmt::print("  64 B round trip {:.1f} us\n", median(trips) * 1e6);
  return 0;
}

}  // namespace
}  // namespace tensorbus::fabric

int main() { return tensorbus::fabric::run(); }
