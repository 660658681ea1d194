#include "bus/registration/membership.h"

namespace tensorbus::bus {
namespace {

using After = std::optional<Membership>;

After after(Membership now, const Announced&) {
  if (now.presence != Presence::hidden) return std::nullopt;
  now.presence = Presence::shown;
  return now;
}

// A registration is in one generation only: what has ended does not begin again.
After after(Membership now, const GenerationBegun&) {
  if (now.presence != Presence::shown || now.sending || now.ends_after) return std::nullopt;
  now.sending = true;
  return now;
}

// Of several ends the earliest counts.
After after(Membership now, const GenerationEnded& ended) {
  if (now.presence != Presence::shown) return std::nullopt;
  if (now.ends_after && *now.ends_after <= ended.after) return std::nullopt;
  now.ends_after = ended.after;
  return now;
}

After after(Membership now, const SendAccepted&) {
  if (now.closing() || now.stale()) return std::nullopt;
  ++now.last_round;
  return now;
}

After after(Membership now, const SendsOver&) {
  if (!now.sending || !now.stale()) return std::nullopt;
  now.sending = false;
  return now;
}

After after(Membership now, const Closed& closed) {
  if (now.closing()) return std::nullopt;
  const bool leaves = now.sending && closed.answered;
  now.presence = leaves ? Presence::leaving : Presence::gone;
  if (leaves) now.leaves_after = *closed.answered;
  now.sending = false;
  return now;
}

After after(Membership now, const Told&) {
  if (now.presence != Presence::leaving) return std::nullopt;
  now.presence = Presence::gone;
  return now;
}

SenderMove move_in_own_generation(const Membership& now, const RecordSight& seen) {
  const bool unseen = !now.sending && !now.ends_after;
  if (seen.ended && !unseen) return SenderMove::end;
  if (seen.ended) {
    const bool goes_on = seen.as_we_are && seen.after > 0 && seen.is_of_group;
    return goes_on ? SenderMove::begin_and_end : SenderMove::end_unseen;
  }
  if (!seen.as_we_are) return SenderMove::end_as_dead;
  if (seen.left) return SenderMove::end_for_lost;
  return unseen && seen.is_of_group ? SenderMove::begin : SenderMove::wait;
}

}  // namespace

std::optional<Membership> next(Membership now, const MembershipEvent& event) noexcept {
  return std::visit([&](const auto& each) { return after(now, each); }, event);
}

SenderMove move_of(const Membership& now, const RecordSight& seen) noexcept {
  if (seen.has_us) return move_in_own_generation(now, seen);
  if (seen.exists && !seen.ended) return seen.left ? SenderMove::report_lost : SenderMove::wait;
  return seen.group_is_new ? SenderMove::propose : SenderMove::wait;
}

}  // namespace tensorbus::bus
