// One connection: greeting with proof of the secret, frames in order, signs of life.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "fabric/core/peer.h"
#include "fabric/ucx/endpoint.h"
#include "tensorbus/deadline.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric::ucx {

// What all connections of a fabric share; borrowed by them.
struct Home {
  Worker& worker;
  Outbox& outbox;
  const Clock& clock;
  const Identity& self;
};

inline constexpr Duration heartbeat_every = std::chrono::seconds(1);
inline constexpr int heartbeats_missed_when_lost = 5;
// A caller that does not prove itself in this time is forgotten.
inline constexpr Duration greeting_time = std::chrono::seconds(5);

// Greeting: hello -> welcome (with the answerer's proof) -> proof -> ready. Nothing is thrown for
// what the peer does: the connection is lost then, and lost() says why.
class Connection final : public Peer {
 public:
  // Calls a fabric.
  Connection(const Home& home, const Address& remote, const std::string& secret, Deadline deadline);
  // Answers a hello. Error if the hello names no reachable worker.
  Connection(const Home& home, const Hello& hello, const std::string& secret);

  const Identity& identity() const noexcept override { return identity_; }
  bool up() const noexcept override { return state_ == State::up && !lost_; }

  bool is_caller() const noexcept { return role_ == Role::caller; }
  std::uint64_t stream() const noexcept { return stream_; }
  const std::string& description() const noexcept { return description_; }

  void send(Kind kind, std::uint64_t number = 0, std::uint64_t index = 0,
            std::string_view body = {});
  void send(Kind kind, std::uint64_t number, std::uint64_t index,
            std::unique_ptr<Outgoing> message);
  // An empty message to fill and send.
  std::unique_ptr<Outgoing> outgoing() { return home_.outbox.take(); }
  std::size_t sends_under_way() const noexcept { return endpoint_->sends_under_way(); }
  std::size_t bytes_under_way() const noexcept { return endpoint_->bytes_under_way(); }

  // A frame for this stream. True if the frame is the next one and the connection lives: only then
  // may the frame's body be looked at.
  bool accept(const Frame& frame);
  // Frames of the greeting and of the end of the connection, already accepted.
  void greet(const Frame& frame, std::string_view body);

  // Heartbeats, the greeting's deadline, what UCX found out.
  void tick(TimePoint now);
  TimePoint next_tick() const noexcept;

  // First reason wins.
  void lose(Status reason);
  // "rank 3 (pid 4711) sent ...": the peer's own fault, which ends this connection only.
  void lose_for(std::string_view what_it_did);
  const std::optional<Status>& lost() const noexcept { return lost_; }
  // Whether the frames sent before the end, a goodbye among them, have left.
  bool flushed() noexcept { return endpoint_->flushed(); }
  // Users may hold a Peer for longer than its endpoint may live.
  void hang_up() noexcept { endpoint_.reset(); }
  // The connection was opened here, or PeerUp was said.
  bool known_to_user() const noexcept { return is_caller() || state_ == State::up; }
  // Words that the peer may swap. Words live as long as users hold the Peer.
  std::deque<std::atomic<std::uint64_t>>& words() noexcept { return words_; }
  // False if the peer ended the connection, or was told already.
  bool tell_peer() const noexcept { return tell_peer_; }

 private:
  enum class State { greeting, up };

  void welcomed(std::string_view body);
  void proven(std::string_view body);
  void refuse(Status reason);

  Home home_;
  Role role_;
  State state_ = State::greeting;
  Identity identity_;
  std::string description_;
  std::string secret_;  // empty once proven
  Hello hello_;
  Welcome welcome_;
  Deadline greeting_deadline_;
  std::unique_ptr<Endpoint> endpoint_;
  std::uint64_t stream_ = 0;         // ours: what frames to us carry
  std::uint64_t remote_stream_ = 0;  // what frames to the peer carry
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  TimePoint next_heartbeat_;
  bool heard_ = false;
  int missed_ = 0;
  bool tell_peer_ = true;
  std::deque<std::atomic<std::uint64_t>> words_;
  std::optional<Status> lost_;
};

}  // namespace tensorbus::fabric::ucx
