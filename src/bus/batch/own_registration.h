// What all parts of one registration of a batch use. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bus/batch/membership.h"
#include "bus/channel/loan.h"
#include "bus/match/match.h"
#include "bus/round/context.h"

namespace tensorbus::bus {

struct OwnRegistration {
  Context& context;
  const BatchKey key;
  const std::uint64_t session;
  BatchMember record;
  std::shared_ptr<Loan> loan;
  Membership membership{};
  Status ended{};                               // why its generation has ended, if it has
  std::string missing{};                        // what registering waits for; for messages
  std::optional<std::int64_t> shown_version{};  // in the store

  bool versioned() const noexcept { return record.versioned.has_value(); }
  // Whether the tensors of its batch go this way only.
  bool one_way(Direction direction) const noexcept {
    return record.versioned && record.versioned->direction == direction;
  }
  // False: the event is ignored.
  bool happen(const MembershipEvent& event) noexcept;
  // For a send that is accepted now.
  std::int64_t next_round() noexcept;

  // Its tensors in the order in which the senders count them; an empty view for each that this rank
  // has no part in.
  std::vector<TensorView> ordered(const Group& sources) const;
  void show_record() const;
  void show_version(std::int64_t version);

  void complete(CommandId id, Outcome outcome) const;
  void answer(CommandId id, Status status = {}) const;
};

}  // namespace tensorbus::bus
