// A registration's place among the registrations of the other ranks, as pure functions: how long
// its record is shown, which rounds of its generation go on, and what a sender does about the
// generation's record.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "tensorbus/layout.h"

namespace tensorbus::bus {

// Of the registration's record in the store.
enum class Presence : std::uint8_t {
  hidden,   // not shown yet: an earlier registration of the same name is still leaving
  shown,    // the other ranks see it
  leaving,  // closed; the record stays until the others know after which round
  gone,     // closed, and the record needs nothing more
};

struct Membership {
  Presence presence = Presence::hidden;
  bool sending = false;                      // its generation has begun, and this rank serves in it
  std::int64_t last_round = 0;               // of the sends that were accepted
  std::optional<std::int64_t> ends_after{};  // its generation has ended, after this round
  std::int64_t leaves_after = 0;             // leaving: the last round that the others go on with

  bool closing() const noexcept {
    return presence == Presence::leaving || presence == Presence::gone;
  }
  // Every sender has to register again; this registration may be replaced.
  bool stale() const noexcept { return ends_after && last_round >= *ends_after; }
  friend bool operator==(const Membership&, const Membership&) = default;
};

// The record was published.
struct Announced {};
// All senders of the generation are there, and this registration is one of them.
struct GenerationBegun {};
// A sender is gone, or has left after a round that all senders were answered for.
struct GenerationEnded {
  std::int64_t after = 0;
};
struct SendAccepted {};
// The generation has ended, and the last send that went on is over.
struct SendsOver {};
// Without a round that was answered: the worker is lost, and so is the rank for the others.
struct Closed {
  std::optional<std::int64_t> answered;
};
// The others know that this rank leaves, or could not be told in time.
struct Told {};
using MembershipEvent = std::variant<Announced, GenerationBegun, GenerationEnded, SendAccepted,
                                     SendsOver, Closed, Told>;

// Nothing: the event cannot happen now, or is ignored.
std::optional<Membership> next(Membership now, const MembershipEvent& event) noexcept;

// What the record of its group's generation says to one sender.
struct RecordSight {
  bool exists = false;
  bool ended = false;
  std::int64_t after = 0;      // ended
  bool has_us = false;         // this registration is one of its senders
  bool as_we_are = false;      // and with the incarnation that this rank has now
  bool is_of_group = false;    // it names the very registrations that this rank sees
  std::optional<Rank> left{};  // not ended: a sender that is gone or has registered again
  bool group_is_new = false;  // no registration that this rank sees was in it, and all fit together
};

enum class SenderMove : std::uint8_t {
  wait,
  begin,          // serve in it
  begin_and_end,  // it has begun and ended since this rank last looked; its rounds go on
  end,            // its rounds end after the last that goes on
  end_unseen,     // it has begun and ended since this rank last looked; no round goes on here
  end_as_dead,    // others took this rank for dead: write that it has ended, and end
  end_for_lost,   // a sender is gone: write that it has ended, and end
  report_lost,    // an earlier generation: write that it has ended
  propose,        // write the next generation
};
SenderMove move_of(const Membership& now, const RecordSight& seen) noexcept;

}  // namespace tensorbus::bus
