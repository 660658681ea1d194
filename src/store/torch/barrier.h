// A reusable barrier made of what torch's server has: compare-and-set and waiting for a key. (Its
// own BARRIER works once per name and cannot be left.)
//
// One key holds the round and who is inside. The member that comes last opens the next round in
// that key and sets this round's release key, for which the others wait; the last member also
// removes the release key of two rounds before, which everybody has seen by then.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/torch/pool.h"

namespace tensorbus::store {

// One passage of one member.
class TorchBarrier {
 public:
  // Throws Error(invalid_argument) for a name too long for the keys it needs.
  TorchBarrier(TorchPool& pool, std::string name, std::size_t count, std::string member);

  // Returns when `count` members are inside. Otherwise takes the arrival back, so that nobody is
  // released by a member that has left; taking back goes on when `until` has ended, until `closed`
  // is signalled.
  void enter(const Until& until, const os::EventFd& closed);

 private:
  struct Arrival {
    std::uint64_t token = 0;  // tells members of one name apart, and every state from every other
    std::string member;
  };
  struct State {
    std::uint64_t epoch = 0;  // another one after the server has lost its state
    std::uint64_t round = 0;
    std::uint64_t released_by = 0;  // who completed the round before
    std::uint64_t count = 0;        // of those inside
    std::vector<Arrival> inside;
  };
  // A round, and whether the member would be its last.
  struct TriedRound {
    std::uint64_t epoch = 0;
    std::uint64_t round = 0;
    bool last = false;
  };
  enum class Standing : std::uint8_t { outside, inside, last, round_over };

  static std::string encode(const State& state);
  State decode(const std::string& bytes) const;
  std::string release_key(std::uint64_t epoch, std::uint64_t round) const;
  bool holds_me(const State& state) const;
  // Where this passage stands by the state found after it tried to enter a round.
  Standing standing(const std::string& found, const TriedRound& tried) const;

  // The state's bytes; empty if there is none.
  std::string look(const Until& until);
  // What the key holds now.
  std::string compare_and_set(const std::string& expected, const std::string& desired,
                              const Until& until);
  // Enters a round, unless this passage is in one; tried_ says which.
  void arrive(const Until& until);
  // True when the round is complete, false at the deadline.
  bool await_release(const Until& until);
  void release(const Until& until);
  // True if the round was completed after all; else `members` are those who were inside.
  bool withdraw(const Until& until, std::vector<std::string>& members);

  TorchPool& pool_;
  const std::string name_;
  const std::string state_key_;
  const std::size_t count_;
  const Arrival me_;
  std::optional<TriedRound> tried_;
};

}  // namespace tensorbus::store
