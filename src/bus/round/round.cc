#include "bus/round/round.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tensorbus::bus {

std::string_view to_string(Mark mark) noexcept {
  switch (mark) {
    case Mark::idle:
      return "idle";
    case Mark::offered:
      return "offered";
    case Mark::read:
      return "read";
    case Mark::skipped:
      return "skipped";
    case Mark::revoked:
      return "revoked";
    case Mark::conflict:
      return "conflict";
    case Mark::closed:
      return "closed";
  }
  return "?";
}

std::string to_string(RoundWord word) {
  return fmt::format("{}({})", to_string(word.mark), word.round);
}

Choice choose(std::span<const SourceView> sources) {
  Choice choice;
  for (const SourceView& source : sources) choice.round = std::max(choice.round, source.floor);
  choice.ready = true;
  for (std::size_t at = 0; at < sources.size(); ++at) {
    const SourceView& source = sources[at];
    if (source.floor == choice.round) {
      choice.ready = choice.ready && source.offered;
    } else {
      choice.ready = false;
      if (source.offered) choice.skip.push_back(at);
    }
  }
  return choice;
}

ReaderOutcome outcome_of(const Ending& ending) noexcept {
  if (ending.word.mark == Mark::read) return ReaderOutcome::read;
  if (ending.lost || ending.word.mark == Mark::closed) return ReaderOutcome::lost;
  return ReaderOutcome::failed;
}

std::map<Rank, ReaderOutcome> outcomes_of(const std::map<Rank, Ending>& endings) {
  std::map<Rank, ReaderOutcome> outcomes;
  for (const auto& [rank, ending] : endings) {
    const ReaderOutcome ended = outcome_of(ending);
    // A reader that has read has started: the source may see the reader's word before its message.
    if (ending.tentative && ended != ReaderOutcome::read) continue;
    outcomes[rank] = ended;
  }
  return outcomes;
}

Outcome send_outcome(std::int64_t round, const std::map<Rank, ReaderOutcome>& readers,
                     const Status& why) {
  Outcome outcome;
  outcome.round = round;
  outcome.readers = readers;
  std::vector<Rank> failed;
  for (const auto& [rank, ended] : readers) {
    if (ended == ReaderOutcome::lost) outcome.lost.push_back(rank);
    if (ended == ReaderOutcome::failed) failed.push_back(rank);
  }
  if (outcome.lost.empty() && failed.empty()) return outcome;
  if (!why.ok()) {
    outcome.status = why;
  } else if (!outcome.lost.empty()) {
    outcome.status = {Code::peer_lost,
                      fmt::format("round {}: reader rank {} was lost before it had read; the next "
                                  "round runs without it",
                                  round, fmt::join(outcome.lost, ", "))};
  } else {
    outcome.status = {
        Code::failed,
        fmt::format("round {}: reader rank {} did not read it: another of its senders "
                    "had withdrawn the round, or it found other bytes than were offered (or both "
                    "sides were sending)",
                    round, fmt::join(failed, ", "))};
  }
  return outcome;
}

}  // namespace tensorbus::bus
