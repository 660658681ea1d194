// What all parts of one registration of a batch use. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bus/channel/loan.h"
#include "bus/match/match.h"
#include "bus/registration/membership.h"
#include "bus/round/context.h"

namespace tensorbus::bus {

// A registration's tensors in this order; an empty view for each that is not at its rank.
std::vector<TensorView> ordered(const ItemOrder& order, std::span<const TensorView> tensors);

struct OwnRegistration {
  Context& context;
  const BatchKey key;
  const std::uint64_t session;
  BatchMember record;
  std::shared_ptr<Loan> loan;
  Membership membership{};
  Status ended{};                               // why its generation has ended, if it has
  std::string missing{};                        // what registering waits for; for messages
  std::optional<std::int64_t> moved_version{};  // that it has sent or read since it registered
  std::optional<std::int64_t> shown_version{};  // of these, in the store

  bool versioned() const noexcept { return record.versioned.has_value(); }
  // Versions are published and pulled, and there are no rounds.
  bool shelved() const noexcept { return record.versioned && record.versioned->keep; }
  // Whether the tensors of its batch go this way only.
  bool one_way(Direction direction) const noexcept {
    return record.versioned && record.versioned->direction == direction;
  }
  // False: the event is ignored.
  bool happen(const MembershipEvent& event) noexcept;
  // For a send that is accepted now.
  std::int64_t next_round() noexcept;

  std::vector<TensorView> ordered(const ItemOrder& order) const {
    return bus::ordered(order, loan->tensors());
  }
  void show_record() const;
  // 0: none yet.
  std::int64_t last_version() const noexcept {
    return moved_version.value_or(record.versioned ? record.versioned->last : 0);
  }
  // What the next senders go on from, if all that there were are gone.
  void show_version();

  void complete(CommandId id, Outcome outcome) const;
  void answer(CommandId id, Status status = {}) const;
};

}  // namespace tensorbus::bus
