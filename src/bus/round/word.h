// The 64-bit word of a subscription: how far the source and one reader are with a round. Every
// change is a compare-and-swap of the whole word, so a round has one end, seen by both.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tensorbus::bus {

enum class Mark : std::uint8_t {
  idle,      // no round yet
  offered,   // the only mark that is not an end
  read,      // the reader needs the memory no more
  skipped,   // the reader went on to a later round
  revoked,   // the source took the round back
  conflict,  // both were sending to each other
  closed,    // the subscription is over
};
std::string_view to_string(Mark mark) noexcept;

struct RoundWord {
  Mark mark = Mark::idle;
  std::int64_t round = 0;

  constexpr bool over() const noexcept { return mark != Mark::offered; }
  friend constexpr bool operator==(RoundWord, RoundWord) = default;
};
std::string to_string(RoundWord word);

constexpr std::uint64_t pack(RoundWord word) noexcept {
  return static_cast<std::uint64_t>(word.round) << 3 | static_cast<std::uint64_t>(word.mark);
}
// Marks that do not exist read as closed: nobody follows the writer of such a mark any further.
constexpr RoundWord unpack(std::uint64_t bits) noexcept {
  const auto mark = bits & 7;
  return {mark > 6 ? Mark::closed : static_cast<Mark>(mark), static_cast<std::int64_t>(bits >> 3)};
}

enum class Party : std::uint8_t { source, reader };

// All changes that there are.
constexpr bool may_change(RoundWord from, RoundWord to, Party by) noexcept {
  if (from.mark == Mark::closed) return false;
  if (from.over()) {
    if (by == Party::reader) return false;
    return (to.mark == Mark::offered && to.round > from.round) ||
           (to.mark == Mark::closed && to.round == from.round);
  }
  if (to.round != from.round) return false;
  switch (to.mark) {
    case Mark::conflict:
      return true;
    case Mark::read:
    case Mark::skipped:
      return by == Party::reader;
    case Mark::revoked:
    case Mark::closed:
      return by == Party::source;
    default:
      return false;
  }
}

static_assert(may_change({Mark::offered, 3}, {Mark::read, 3}, Party::reader));
// A stalled reader must not commit against the next round.
static_assert(!may_change({Mark::offered, 4}, {Mark::read, 3}, Party::reader));
static_assert(!may_change({Mark::read, 3}, {Mark::revoked, 3}, Party::source));

}  // namespace tensorbus::bus
