// One rank's part in a pull of its whole side: the rank proposes what it could have to the side's
// lowest rank, reads what the lowest rank chooses, and returns when the lowest rank has heard that
// all ranks have read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bus/registration/own_registration.h"
#include "bus/shelf/chair.h"
#include "bus/shelf/puller.h"

namespace tensorbus::bus {

class JointPull {
 public:
  explicit JointPull(OwnRegistration& self) : self_(self), chair_(self) {}

  // The side as this rank sees it now.
  void follow(const GroupPtr& side);
  // A side of one rank has nobody to agree with.
  bool has_others() const noexcept { return side_ != nullptr && side_->members.size() > 1; }

  // Moves the pull that runs, or begins one. Returns the outcome, once the pull is over.
  std::optional<Outcome> step(Puller& puller, const Wanted& wanted);
  // This rank has read what was chosen, and has yet to hear whether the others have.
  bool has_voted() const noexcept { return voted_ != 0; }
  // The pull is over at this rank, which the lowest one may not know.
  void end(const Outcome& outcome);
  // What goes on whether or not this rank pulls.
  void rest() { chair_.step(); }
  void close();
  // Empty: nobody but the senders.
  std::string waits_for() const;
  // The ranks of this side that it names.
  std::vector<Rank> awaited() const;

  // Whether the message is of the pull that runs, or of one that this rank decides on.
  bool is_for(const PeerConnectionPtr& connection, const AgentMessage& message) const;
  void on_message(const PeerConnectionPtr& connection, const AgentMessage& message);
  void on_lost(const PeerConnectionPtr& connection, const Status& why);
  TimePoint wake_at() const noexcept;

 private:
  bool leads() const noexcept { return lowest_.first == self_.key.rank; }
  bool runs() const noexcept { return serial_ != 0; }
  bool is_own(const PeerConnectionPtr& connection, const AgentMessage& message) const;
  bool reaches_lowest() const noexcept {
    return leads() || (connection_ != nullptr && connection_->up());
  }
  bool is_connecting() const noexcept {
    return !leads() && connection_ != nullptr && !connection_->up();
  }
  void begin();
  void connect();
  void lose(const std::string& why);
  void forget();
  std::optional<Outcome> advance(Puller& puller, const Wanted& wanted);
  std::optional<Outcome> finish_reading(Puller& puller);
  void obey(Puller& puller, const Wanted& wanted);
  void vote(std::int64_t number, bool read);
  void propose(const Puller& puller, const Wanted& wanted);
  void say(std::int64_t generation, MessageBody body);
  void hear(const AgentMessage& message);

  OwnRegistration& self_;
  Chair chair_;
  GroupPtr side_;
  Agreement::Member lowest_{};
  PeerConnectionPtr connection_;  // to the lowest rank
  TimePoint retry_at_ = TimePoint::max();
  std::string trouble_;  // with that connection

  std::uint64_t serial_ = 0;  // of the pull that runs; 0: none does
  std::int64_t count_ = 0;    // of proposals
  std::optional<std::pair<std::int64_t, Propose>> said_;
  Choose order_;
  std::int64_t ordered_in_ = 0;  // its generation
  std::int64_t obeyed_ = 0;
  std::int64_t reading_ = 0;  // the choice that is being read; 0: none is
  std::int64_t voted_ = 0;    // the choice that was read
  Outcome read_;              // then
  std::optional<Outcome> over_;
  Waits waits_;
  bool answered_ = false;  // by the lowest rank, to this pull
};

}  // namespace tensorbus::bus
