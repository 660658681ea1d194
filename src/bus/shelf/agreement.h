// Which version the ranks of a side pull together, as the lowest rank finds it: the lowest rank
// chooses a version that all could have, and decides when all have read it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "bus/round/messages.h"

namespace tensorbus::bus {

class Agreement {
 public:
  using Member = std::pair<Rank, std::uint64_t>;  // a rank and its registration
  // For all who propose. After a decision or an end nobody proposes any more.
  struct Told {
    std::int64_t generation = 0;
    MessageBody body;
  };

  explicit Agreement(std::string side) : side_(std::move(side)) {}

  // Who has to agree; nobody: another rank is the lowest.
  void set_members(std::set<Member> members);
  // In place of what the member proposed before. `anew`: the member does not know what was chosen,
  // because its pull is another one, or its connection.
  void propose(const Member& member, std::int64_t generation, const Propose& proposal, bool anew);
  void vote(const Member& member, const Vote& vote);
  // The member's pull is over, or its connection.
  void remove(const Member& member) { proposals_.erase(member); }
  bool has(const Member& member) const { return members_.contains(member); }

  // What follows; to be asked until nothing does.
  std::optional<Told> next();
  // What was chosen is void: a rank that has read it, or keeps something, begins again.
  std::optional<Told> stop();
  // Every pull that took part is over.
  void end();
  // For messages: who has not pulled, and who has not read what was chosen.
  Waits waits() const;

 private:
  enum class Stage : std::uint8_t { gathering, pinning, reading };
  struct Proposal {
    std::int64_t generation = 0;
    Propose wish;
  };

  bool complete() const;
  std::optional<Told> follow_reading();
  std::optional<Told> choose_next();
  Told choose(std::int64_t version);
  Told ask_to_pin();
  Told decide();
  std::optional<Told> refuse();
  Told give_up(Status why, Absence absence);
  // The generation of all proposals; 0: proposals differ, or a rank follows no shelf now.
  std::int64_t generation() const;
  // The best version that all could have; 0: none.
  std::int64_t best() const;
  // Some rank has a source with more than all could have.
  bool more() const;
  void take_pins();

  const std::string side_;
  std::set<Member> members_;
  std::map<Member, Proposal> proposals_;
  Stage stage_ = Stage::gathering;
  std::int64_t number_ = 0;      // of the last choice
  std::int64_t generation_ = 0;  // of what is chosen or pinned; 0: nothing is
  std::int64_t version_ = 0;     // reading
  std::set<Member> read_;
  bool lost_ = false;      // a member cannot read what was chosen
  bool must_pin_ = false;  // what was chosen last was taken back
  bool narrows_ = false;   // members still keep more than the pinned version
  bool anew_ = false;      // a member does not know what was chosen
  std::int64_t pinned_ = 0;
};

}  // namespace tensorbus::bus
