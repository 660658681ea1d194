// The slots of a shelf at one sender: what each holds, who would like it to stay, and which one the
// next version may have. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "tensorbus/layout.h"

namespace tensorbus::bus {

enum class SlotState : std::uint8_t {
  empty,
  filling,   // the worker writes to it; nobody has a ticket for it
  complete,  // holds a version that never changes
};
enum class SlotEvent : std::uint8_t {
  taken,     // for the next version, after its gate was moved past every older ticket
  filled,    // the worker has copied all of it
  given_up,  // the worker has failed, or is gone
};

// Nothing: this cannot happen now.
constexpr std::optional<SlotState> next(SlotState state, SlotEvent event) noexcept {
  const bool filling = state == SlotState::filling;
  if (event == SlotEvent::taken) {
    return filling ? std::nullopt : std::optional(SlotState::filling);
  }
  if (!filling) return std::nullopt;
  return event == SlotEvent::filled ? SlotState::complete : SlotState::empty;
}
static_assert(!next(SlotState::complete, SlotEvent::filled));
static_assert(next(SlotState::filling, SlotEvent::given_up) == SlotState::empty);

struct Slot {
  SlotState state = SlotState::empty;
  std::int64_t version = 0;
  std::uint64_t ticket = 0;  // never that of another version, in whatever slot
};

// What a reader would like to find for a while. Advice: nothing is wrong if it is lost or late.
struct Wish {
  Rank reader = 0;
  std::set<std::int64_t> versions;
  std::optional<std::int64_t> from;  // this one and all later ones

  bool covers(std::int64_t version) const {
    return versions.contains(version) || (from && version >= *from);
  }
};

class Slots {
 public:
  explicit Slots(std::size_t count) : slots_(count) {}

  const std::vector<Slot>& all() const noexcept { return slots_; }
  // The newest version that is complete; 0: none.
  std::int64_t newest() const noexcept;
  std::vector<std::int64_t> versions() const;

  // A version that all senders have: what is older may go, and otherwise only what will never be
  // everywhere. Otherwise a sender that ran ahead of the others would keep nothing that the others
  // have, too.
  void note_common(std::int64_t version);
  // For good: what was once known never to be everywhere stays so, whatever is heard later.
  void note_doomed(std::span<const std::int64_t> versions);
  std::int64_t common() const noexcept { return common_; }

  void hold(std::uint64_t serial, Wish wish) { wishes_[serial] = std::move(wish); }
  void release(std::uint64_t serial) { wishes_.erase(serial); }

  // A slot for the next version: an empty one, else the oldest that nobody holds. `withdraw`: else
  // the oldest.
  std::optional<std::size_t> choose(bool withdraw) const;
  // The readers that stand in the way: none if it is other senders that lag.
  std::set<Rank> holders() const;

  // Returns the new ticket: the slot's gate must have been moved there before the slot is written.
  std::uint64_t take(std::size_t slot, std::int64_t version);
  // The slot that holds the version now; nothing: no slot was being filled with the version.
  std::optional<std::size_t> complete(std::int64_t version);
  // Gives up the slot that is being filled; false: none is.
  bool give_up();

 private:
  bool may_go(const Slot& slot) const noexcept;
  bool is_held(std::int64_t version) const;

  std::vector<Slot> slots_;
  std::map<std::uint64_t, Wish> wishes_;  // by subscription
  std::int64_t common_ = 0;
  std::set<std::int64_t> doomed_;
  std::uint64_t last_ticket_ = 0;
};

}  // namespace tensorbus::bus
