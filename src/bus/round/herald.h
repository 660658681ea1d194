// Of a batch with versions: its first sender has every reader as a subscriber, and tells the other
// senders when a round may begin and how it ended, so that a send means the same at all of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bus/round/context.h"

namespace tensorbus::bus {

class Herald {
 public:
  // `address`: of the first sender; none: this rank is it.
  Herald(Context& context, Follow wish, std::int64_t generation, Rank first,
         std::optional<fabric::Address> address);

  bool is_first() const noexcept { return !address_; }
  Rank first() const noexcept { return first_; }

  // The first sender tells its followers; a follower that comes late is told what it has missed.
  void add_follower(const PeerConnectionPtr& connection, std::uint64_t serial);
  void tell_begun(std::int64_t round);
  void tell_ended(std::int64_t round, std::map<Rank, ReaderOutcome> readers);
  std::int64_t last_ended() const noexcept { return ended_.round; }

  // The other senders hear from the first one.
  bool knows(std::uint64_t serial) const noexcept {
    return connection_ != nullptr && serial == serial_;
  }
  void on_message(const AgentMessage& message);
  void on_up(const PeerConnectionPtr& connection);
  void on_lost(const PeerConnectionPtr& connection);
  bool has_begun(std::int64_t round) const noexcept;
  // How a round ended for all readers; nothing while that is not known. Of a round that a later
  // round has followed only the fact that it ended.
  std::optional<std::map<Rank, ReaderOutcome>> ending(std::int64_t round) const;
  // The first sender is not connected: nobody could tell.
  bool is_alone() const noexcept { return connection_ == nullptr; }

  // Follows again after the connection was lost.
  void step();
  TimePoint wake_at() const noexcept { return retry_at_; }

 private:
  struct Follower {
    PeerConnectionPtr connection;
    std::uint64_t serial = 0;
  };

  void follow();
  void ask();
  void tell_all(const MessageBody& body);

  Context& context_;
  const Follow wish_;
  const std::int64_t generation_;
  const Rank first_;
  const std::optional<fabric::Address> address_;
  std::vector<Follower> followers_;
  PeerConnectionPtr connection_;  // to the first sender
  std::uint64_t serial_ = 0;
  bool asked_ = false;
  TimePoint retry_at_ = TimePoint::max();
  std::int64_t begun_ = 0;
  Ended ended_;
};

}  // namespace tensorbus::bus
