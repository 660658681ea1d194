#include "bus/shelf/slots.h"

#include <algorithm>

namespace tensorbus::bus {

std::int64_t Slots::newest() const noexcept {
  std::int64_t newest = 0;
  for (const Slot& slot : slots_) {
    if (slot.state == SlotState::complete) newest = std::max(newest, slot.version);
  }
  return newest;
}

std::vector<std::int64_t> Slots::versions() const {
  std::vector<std::int64_t> versions;
  for (const Slot& slot : slots_) {
    if (slot.state == SlotState::complete) versions.push_back(slot.version);
  }
  return versions;
}

void Slots::note_common(std::int64_t version) { common_ = std::max(common_, version); }

void Slots::note_doomed(std::span<const std::int64_t> versions) {
  std::set<std::int64_t> here;
  for (const std::int64_t version : this->versions()) {
    const bool told = std::ranges::find(versions, version) != versions.end();
    if (told || doomed_.contains(version)) here.insert(version);
  }
  doomed_ = std::move(here);
}

bool Slots::may_go(const Slot& slot) const noexcept {
  if (slot.state != SlotState::complete) return false;
  return slot.version < common_ || doomed_.contains(slot.version);
}

bool Slots::is_held(std::int64_t version) const {
  return std::ranges::any_of(wishes_,
                             [&](const auto& each) { return each.second.covers(version); });
}

std::optional<std::size_t> Slots::choose(bool withdraw) const {
  std::optional<std::size_t> chosen;
  for (std::size_t at = 0; at < slots_.size(); ++at) {
    const Slot& slot = slots_[at];
    if (slot.state == SlotState::empty) return at;
    if (!may_go(slot)) continue;
    const bool held = is_held(slot.version);
    if (held && !withdraw) continue;
    if (!chosen) {
      chosen = at;
      continue;
    }
    const Slot& best = slots_[*chosen];
    const bool best_held = is_held(best.version);
    if (held != best_held ? best_held : slot.version < best.version) chosen = at;
  }
  return chosen;
}

std::set<Rank> Slots::holders() const {
  std::set<Rank> holders;
  for (const Slot& slot : slots_) {
    for (const auto& [serial, wish] : wishes_) {
      if (may_go(slot) && wish.covers(slot.version)) holders.insert(wish.reader);
    }
  }
  return holders;
}

std::uint64_t Slots::take(std::size_t slot, std::int64_t version) {
  slots_[slot] = {next(slots_[slot].state, SlotEvent::taken).value(), version, ++last_ticket_};
  return last_ticket_;
}

std::optional<std::size_t> Slots::complete(std::int64_t version) {
  for (std::size_t at = 0; at < slots_.size(); ++at) {
    const auto after = next(slots_[at].state, SlotEvent::filled);
    if (!after || slots_[at].version != version) continue;
    slots_[at].state = *after;
    return at;
  }
  return std::nullopt;
}

bool Slots::give_up() {
  for (Slot& slot : slots_) {
    const auto after = next(slot.state, SlotEvent::given_up);
    if (!after) continue;
    slot = {*after, 0, slot.ticket};
    return true;
  }
  return false;
}

}  // namespace tensorbus::bus
