#include "bus/round/links.h"

#include "base/log.h"

namespace tensorbus::bus {

LinkPtr Links::open(const fabric::Address& remote, Deadline deadline) {
  const std::pair key(remote.identity.id, remote.where);
  if (const auto found = opened_.find(key); found != opened_.end()) {
    return found->second;
  }
  auto link = std::make_shared<Link>(fabric_.connect(remote, secret_, deadline));
  opened_[key] = link;
  links_[link->peer().get()] = link;
  return link;
}

void Links::send(Link& link, std::int64_t generation, std::uint64_t serial, MessageBody body) {
  if (!link.up()) return;
  std::string bytes = encode({++link.sent_, generation, serial, std::move(body)});
  if (link.waiting_.empty()) congested_.push_back(find(link.peer().get()));
  link.waiting_.push_back(std::move(bytes));
  flush();
}

void Links::flush() {
  std::erase_if(congested_, [&](const LinkPtr& link) {
    while (link != nullptr && link->up() && !link->waiting_.empty()) {
      try {
        fabric_.send(*link->peer(), std::as_bytes(std::span(link->waiting_.front())));
      } catch (const Error& error) {
        // Anything but a full queue: its PeerLost is on the way.
        if (error.code() == Code::queue_full) return false;
        return true;
      }
      link->waiting_.pop_front();
    }
    return true;
  });
}

bool Links::waiting() const noexcept { return !congested_.empty(); }

LinkPtr Links::find(const fabric::Peer* peer) const {
  const auto found = links_.find(peer);
  return found == links_.end() ? nullptr : found->second;
}

LinkPtr Links::on_up(const fabric::PeerUp& up) {
  LinkPtr link = find(up.peer.get());
  if (link == nullptr) {
    link = std::make_shared<Link>(up.peer);
    links_[up.peer.get()] = link;
  }
  link->up_ = true;
  return link;
}

LinkPtr Links::on_lost(const fabric::PeerLost& lost) {
  LinkPtr link = find(lost.peer.get());
  if (link == nullptr) return nullptr;
  link->lost_ = true;
  link->waiting_.clear();
  links_.erase(lost.peer.get());
  std::erase_if(opened_, [&](const auto& entry) { return entry.second == link; });
  return link;
}

std::optional<std::pair<LinkPtr, AgentMessage>> Links::on_message(const fabric::Message& message) {
  const LinkPtr link = find(message.from.get());
  if (link == nullptr || !link->up()) return std::nullopt;
  try {
    AgentMessage read = decode_agent_message(message.bytes);
    if (read.sequence != link->received_ + 1) {
      throw Error(Code::failed, "message " + std::to_string(read.sequence) +
                                    " came after message " + std::to_string(link->received_));
    }
    ++link->received_;
    return std::pair(link, std::move(read));
  } catch (const std::exception& error) {
    log::warn("bus: {} is disconnected: {}", to_string(message.from->identity()), error.what());
    fabric_.disconnect(*message.from);
    return std::nullopt;
  }
}

}  // namespace tensorbus::bus
