// Both ends of a connection, as benchmarks of fabrics drive them.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <span>
#include <utility>

#include "base/clock.h"
#include "fabric/core/fabric.h"
#include "os/io/poll.h"
#include "rows.h"
#include "tensorbus/status.h"

namespace tensorbus::bench {

// Before a sleep: a wake-up costs more than this.
inline constexpr Duration spin_time = std::chrono::microseconds(50);

// Spins, then sleeps, until there were events or `also` is readable.
template <typename Handler>
void step(fabric::Fabric& fabric, int also, Handler handle) {
  // Clocks cost as much as a poll.
  constexpr unsigned polls_per_clock = 16;
  TimePoint sleep_at{};
  for (unsigned polls = 1;; ++polls) {
    const std::span<const fabric::Event> events = fabric.poll();
    for (const fabric::Event& event : events) handle(event);
    if (!events.empty()) return;
    if (polls == polls_per_clock) sleep_at = now() + spin_time;
    if (polls % polls_per_clock != 0 || now() < sleep_at || !fabric.arm()) continue;
    std::array<pollfd, 2> fds{pollfd{fabric.fd(), POLLIN, 0}, pollfd{also, POLLIN, 0}};
    os::sleep_ready(fds, Deadline(fabric.wake_at()));
    if (fds[1].revents != 0) return;
    sleep_at = now() + spin_time;
  }
}

// Sends every message back.
inline void echo(fabric::Fabric& fabric, const fabric::Event& event) {
  if (const auto* message = std::get_if<fabric::Message>(&event)) {
    fabric.send(*message->from, std::as_bytes(std::span(message->bytes)));
  }
}

class Client {
 public:
  Client(std::unique_ptr<fabric::Fabric> fabric, const fabric::Address& owner)
      : fabric_(std::move(fabric)) {
    peer_ = fabric_->connect(owner, "secret", Deadline::never());
    until([&] { return peer_->up(); });
  }

  fabric::Fabric& fabric() noexcept { return *fabric_; }

  fabric::Source attach(std::uint64_t region) {
    fabric_->attach(*peer_, region, id_, Deadline::never());
    return {peer_, finish().region, 0};
  }

  // Seconds.
  double read(const std::shared_ptr<const plan::Stream>& stream, const fabric::Source& source,
              std::span<const TensorView> targets) {
    const TimePoint start = now();
    fabric_->read({stream, 0, {source}, {targets.begin(), targets.end()}}, id_, Deadline::never());
    finish();
    return seconds_since(start);
  }

  // Seconds each.
  double round_trips(int count) {
    const std::array<std::byte, 64> message{};
    const TimePoint start = now();
    for (int i = 0; i < count; ++i) {
      messages_ = 0;
      fabric_->send(*peer_, message);
      until([&] { return messages_ == 1; });
    }
    return seconds_since(start) / count;
  }

 private:
  template <typename Condition>
  void until(Condition holds) {
    while (!holds()) {
      step(*fabric_, -1, [&](const fabric::Event& event) {
        if (const auto* done = std::get_if<fabric::Completion>(&event)) completion_ = *done;
        if (std::holds_alternative<fabric::Message>(event)) ++messages_;
        if (const auto* lost = std::get_if<fabric::PeerLost>(&event)) throw Error(lost->reason);
      });
    }
  }
  const fabric::Completion& finish() {
    completion_ = {};
    until([&] { return completion_.id == id_; });
    if (!completion_.status.ok()) throw Error(completion_.status);
    return completion_;
  }

  static constexpr fabric::OpId id_{1};
  std::unique_ptr<fabric::Fabric> fabric_;
  std::shared_ptr<fabric::Peer> peer_;
  fabric::Completion completion_;
  int messages_ = 0;
};

// What a connected pair costs while nobody says anything: both processes together.
inline Row idle(Client& client, pid_t owner) {
  fabric::Fabric& fabric = client.fabric();
  const auto used = [&] { return cpu_seconds(owner) + cpu_seconds(::getpid()); };
  const double before = used();
  const TimePoint start = now();
  const Deadline end = Deadline::after(std::chrono::seconds(5));
  while (!end.expired()) {
    fabric.poll();
    if (!fabric.arm()) continue;
    pollfd fd{fabric.fd(), POLLIN, 0};
    os::sleep_ready({&fd, 1}, sooner(end, Deadline(fabric.wake_at())));
  }
  const double percent = (used() - before) / seconds_since(start) * 100;
  Row row{"idle pair, 5 s", "1 % of a core", "%", 1, percent, {percent}};
  row.at_most = 1;
  return row;
}

}  // namespace tensorbus::bench
