#include "bus/round/peer_connections.h"

#include "base/log.h"

namespace tensorbus::bus {

PeerConnectionPtr PeerConnections::open(const fabric::Address& remote, Deadline deadline) {
  const std::pair key(remote.identity.id, remote.where);
  if (const auto found = opened_.find(key); found != opened_.end()) {
    return found->second;
  }
  auto connection = std::make_shared<PeerConnection>(fabric_.connect(remote, secret_, deadline));
  opened_[key] = connection;
  connections_[connection->peer().get()] = connection;
  return connection;
}

void PeerConnections::send(PeerConnection& connection, std::int64_t generation,
                           std::uint64_t serial, MessageBody body) {
  if (!connection.up()) return;
  std::string bytes = encode({++connection.sent_, generation, serial, std::move(body)});
  if (connection.waiting_.empty()) congested_.push_back(find(connection.peer().get()));
  connection.waiting_.push_back(std::move(bytes));
  flush();
}

void PeerConnections::flush() {
  std::erase_if(congested_, [&](const PeerConnectionPtr& connection) {
    while (connection != nullptr && connection->up() && !connection->waiting_.empty()) {
      try {
        fabric_.send(*connection->peer(), std::as_bytes(std::span(connection->waiting_.front())));
      } catch (const Error& error) {
        // Anything but a full queue: PeerLost for this peer is on the way.
        if (error.code() == Code::queue_full) return false;
        return true;
      }
      connection->waiting_.pop_front();
    }
    return true;
  });
}

bool PeerConnections::waiting() const noexcept { return !congested_.empty(); }

PeerConnectionPtr PeerConnections::find(const fabric::Peer* peer) const {
  const auto found = connections_.find(peer);
  return found == connections_.end() ? nullptr : found->second;
}

PeerConnectionPtr PeerConnections::on_up(const fabric::PeerUp& up) {
  PeerConnectionPtr connection = find(up.peer.get());
  if (connection == nullptr) {
    connection = std::make_shared<PeerConnection>(up.peer);
    connections_[up.peer.get()] = connection;
  }
  connection->up_ = true;
  return connection;
}

PeerConnectionPtr PeerConnections::on_lost(const fabric::PeerLost& lost) {
  PeerConnectionPtr connection = find(lost.peer.get());
  if (connection == nullptr) return nullptr;
  connection->lost_ = true;
  connection->waiting_.clear();
  connections_.erase(lost.peer.get());
  std::erase_if(opened_, [&](const auto& entry) { return entry.second == connection; });
  return connection;
}

std::optional<std::pair<PeerConnectionPtr, AgentMessage>> PeerConnections::on_message(
    const fabric::Message& message) {
  const PeerConnectionPtr connection = find(message.from.get());
  if (connection == nullptr || !connection->up()) return std::nullopt;
  try {
    AgentMessage read = decode_agent_message(message.bytes);
    if (read.sequence != connection->received_ + 1) {
      throw Error(Code::failed, "message " + std::to_string(read.sequence) +
                                    " came after message " + std::to_string(connection->received_));
    }
    ++connection->received_;
    return std::pair(connection, std::move(read));
  } catch (const std::exception& error) {
    log::warn("bus: {} is disconnected: {}", to_string(message.from->identity()), error.what());
    fabric_.disconnect(*message.from);
    return std::nullopt;
  }
}

}  // namespace tensorbus::bus
