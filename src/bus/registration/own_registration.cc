#include "bus/registration/own_registration.h"

namespace tensorbus::bus {

bool OwnRegistration::happen(const MembershipEvent& event) noexcept {
  const auto after = next(membership, event);
  if (after) membership = *after;
  return after.has_value();
}

std::int64_t OwnRegistration::next_round() noexcept {
  happen(SendAccepted{});
  return membership.last_round;
}

std::vector<TensorView> ordered(const ItemOrder& order, std::span<const TensorView> tensors) {
  std::vector<TensorView> views;
  for (const auto& item : order) views.push_back(item ? tensors[*item] : no_tensor());
  return views;
}

void OwnRegistration::show_record() const {
  context.records_changed = true;
  context.directory.publish(to_text(key), encode(record));
}

void OwnRegistration::show_version() {
  if (!moved_version) return;
  shown_version = moved_version;
  context.directory.publish(to_text(VersionKey{key}),
                            encode(VersionRecord{record.registration, *shown_version}));
}

void OwnRegistration::complete(CommandId id, Outcome outcome) const {
  if (!outcome.status.ok()) outcome.stale = membership.stale();
  outcome.copy_threads = context.copy_threads;
  context.channel.complete(id, outcome);
}

void OwnRegistration::answer(CommandId id, Status status) const {
  Outcome outcome;
  outcome.status = std::move(status);
  complete(id, std::move(outcome));
}

}  // namespace tensorbus::bus
