// At the lowest rank of a side that pulls together: who proposes over which connection, and what
// each rank is told.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "bus/registration/own_registration.h"
#include "bus/shelf/agreement.h"

namespace tensorbus::bus {

class Chair {
 public:
  explicit Chair(OwnRegistration& self) : self_(self), agreement_(self.key.side) {}

  // `leads`: this rank is the lowest of the side.
  void follow(const Group& side, bool leads);
  // PROPOSE, VOTE or GIVE UP. This rank's own messages come without a connection.
  bool is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const;
  void take(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_lost(const PeerConnectionPtr& connection);
  void step();
  // What this rank itself was told since the last call.
  std::vector<AgentMessage> take_own() { return std::exchange(own_, {}); }
  // This rank leads no more: what was chosen is void.
  void close();
  Waits waits() const { return agreement_.waits(); }
  TimePoint wake_at() const noexcept { return tell_at_; }

 private:
  struct Seat {
    PeerConnectionPtr connection;  // null: this rank's own
    std::uint64_t serial = 0;      // of the pull
  };
  using Seats = std::map<Agreement::Member, Seat>;

  void take_proposal(const PeerConnectionPtr& connection, const AgentMessage& message,
                     const Propose& proposal);
  void take_end(const Agreement::Member& member, const GiveUp& end);
  Seats::const_iterator seat_of(const PeerConnectionPtr& connection, std::uint64_t serial) const;
  void leave(const Agreement::Member& member);
  void clear_seats();
  void tell_all(std::int64_t generation, const MessageBody& body);
  void tell_waits();

  OwnRegistration& self_;
  Agreement agreement_;
  Seats seats_;                                       // of those who propose
  std::map<Agreement::Member, std::int64_t> counts_;  // of the last proposal
  std::vector<AgentMessage> own_;
  Waits told_;
  TimePoint tell_at_ = TimePoint::max();
};

}  // namespace tensorbus::bus
