// Connections between agents. Messages are numbered and handled in order; what a peer does not take
// now waits here.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bus/round/messages.h"
#include "fabric/core/fabric.h"

namespace tensorbus::bus {

// How long the other agent may take to answer a connection.
inline constexpr Duration connect_patience = std::chrono::seconds(5);

// One connection, whichever agent opened it. Readers open connections, sources answer on them.
class PeerConnection {
 public:
  explicit PeerConnection(std::shared_ptr<fabric::Peer> peer) : peer_(std::move(peer)) {}

  const std::shared_ptr<fabric::Peer>& peer() const noexcept { return peer_; }
  bool up() const noexcept { return up_ && !lost_; }
  bool lost() const noexcept { return lost_; }

 private:
  friend class PeerConnections;
  std::shared_ptr<fabric::Peer> peer_;
  bool up_ = false;
  bool lost_ = false;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::deque<std::string> waiting_;
};
using PeerConnectionPtr = std::shared_ptr<PeerConnection>;

class PeerConnections {
 public:
  PeerConnections(fabric::Fabric& fabric, std::string secret)
      : fabric_(fabric), secret_(std::move(secret)) {}

  // The connection that this agent has opened to the remote one, or a new connection.
  PeerConnectionPtr open(const fabric::Address& remote, Deadline deadline);
  void send(PeerConnection& connection, std::int64_t generation, std::uint64_t serial,
            MessageBody body);
  // Tries again to send what waits.
  void flush();
  bool waiting() const noexcept;

  // Fabric events. What is malformed or out of order ends the connection: throws nothing, gives
  // nothing.
  PeerConnectionPtr on_up(const fabric::PeerUp& up);
  PeerConnectionPtr on_lost(const fabric::PeerLost& lost);
  std::optional<std::pair<PeerConnectionPtr, AgentMessage>> on_message(
      const fabric::Message& message);

 private:
  PeerConnectionPtr find(const fabric::Peer* peer) const;

  fabric::Fabric& fabric_;
  std::string secret_;
  std::map<std::pair<Id16, std::string>, PeerConnectionPtr>
      opened_;                                                    // by the remote's id and address
  std::map<const fabric::Peer*, PeerConnectionPtr> connections_;  // all; only ever looked up
  std::vector<PeerConnectionPtr> congested_;
};

}  // namespace tensorbus::bus
