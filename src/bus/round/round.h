// A round at its two ends, as pure functions: which round a reader takes, what its recv does next,
// and how a send came out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bus/channel/command.h"
#include "bus/round/word.h"

namespace tensorbus::bus {

// What a reader knows of one source. The floor is the round that is offered, or else the first that
// can be.
struct SourceView {
  std::int64_t floor = 1;
  bool offered = false;
};

// The round to read is the largest floor: some source has withdrawn every earlier round.
struct Choice {
  std::int64_t round = 1;
  bool ready = false;             // all sources offer it
  std::vector<std::size_t> skip;  // sources that offer an earlier one
};
Choice choose(std::span<const SourceView> sources);

// A recv from its turn to its outcome.
enum class RecvState : std::uint8_t {
  waiting,     // for all sources to offer the same round
  reading,     // bytes arrive; nothing is consumed yet
  committing,  // every byte is there; telling the sources
  draining,    // the outcome is known, the memory is still borrowed
  done,
};
enum class RecvEvent : std::uint8_t {
  all_offered,
  all_read,
  settled,  // every source has answered the commit
  failed,   // withdrawn, an error, a lost source
  ended,    // cancelled, or the deadline
  drained,  // nothing is borrowed any more
};

// Nothing: this cannot happen now, or is ignored. A commit that has begun cannot be cancelled, but
// its deadline can pass.
constexpr std::optional<RecvState> next(RecvState state, RecvEvent event) noexcept {
  switch (state) {
    case RecvState::waiting:
      if (event == RecvEvent::all_offered) return RecvState::reading;
      if (event == RecvEvent::failed || event == RecvEvent::ended) return RecvState::done;
      return std::nullopt;
    case RecvState::reading:
      if (event == RecvEvent::all_read) return RecvState::committing;
      if (event == RecvEvent::failed || event == RecvEvent::ended) return RecvState::draining;
      return std::nullopt;
    case RecvState::committing:
      if (event == RecvEvent::settled || event == RecvEvent::failed) return RecvState::done;
      return std::nullopt;
    case RecvState::draining:
      if (event == RecvEvent::drained) return RecvState::done;
      return std::nullopt;
    case RecvState::done:
      return std::nullopt;
  }
  return std::nullopt;
}
static_assert(next(RecvState::reading, RecvEvent::ended) == RecvState::draining);
static_assert(!next(RecvState::committing, RecvEvent::ended));

// How a round ended for one subscriber, as its source sees it.
struct Ending {
  RoundWord word;
  bool lost = false;       // its subscription ended meanwhile
  bool tentative = false;  // it had not said that it starts: it counts only if it has read
};
// A reader that read before it was lost has read.
ReaderOutcome outcome_of(const Ending& ending) noexcept;
// Success if all have read. `why` is what ended the send early, if something did; the status is
// `why` then, unless all had read.
Outcome send_outcome(std::int64_t round, const std::map<Rank, ReaderOutcome>& readers,
                     const Status& why);
// How the round ended for those readers that count.
std::map<Rank, ReaderOutcome> outcomes_of(const std::map<Rank, Ending>& endings);

}  // namespace tensorbus::bus
