#include "bus/batch/following.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/log.h"
#include "bus/registration/senders.h"

namespace tensorbus::bus {

void Following::follow(bool registers) {
  if (matching_.own_end()) end_unseen(*matching_.own_end());
  if (matching_.own() && !self_.one_way(Direction::recv)) follow_own();
  const bool receives = !self_.shelved() && !self_.one_way(Direction::send);
  if (matching_.remote() && receives) follow_theirs(registers);
}

void Following::follow_own() {
  const GroupPtr& own = matching_.own();
  const GenerationKey key = generations_.key_of(*own);
  const auto current = self_.context.catalog.generation(key);
  const RecordSight seen = generations_.sight_of(own);
  const auto report = [&](Rank left, const std::string& why) {
    return generations_.propose_end(key, *current, left, why);
  };
  switch (move_of(self_.membership, seen)) {
    case SenderMove::wait:
      return;
    case SenderMove::begin:
      return begin(*current);
    case SenderMove::begin_and_end:
      begin(*current);
      return end(*current);
    case SenderMove::end:
      return end(*current);
    case SenderMove::end_unseen:
      return end_unseen(*current);
    case SenderMove::end_as_dead:
      return end(report(self_.key.rank, "this rank's agent was taken for dead"));
    case SenderMove::end_for_lost:
      return end(report(*seen.left, is_gone(*seen.left)));
    case SenderMove::report_lost:
      report(*seen.left, is_gone(*seen.left));
      return;
    case SenderMove::propose:
      return generations_.propose_next(*own);
  }
}

void Following::begin(const Generation& generation) {
  log::debug("bus: rank {}: generation {} of batch \"{}\" begins", self_.key.rank,
             generation.number, self_.key.batch);
  exchange_.begin_generation(generation, matching_.own());
  self_.happen(GenerationBegun{});
  self_.context.at(Step::generation_begun);
}

// No round of the ended generation goes on at this rank.
void Following::end_unseen(Generation ended) {
  if (self_.membership.sending || self_.membership.ends_after) return;
  ended.after = 0;
  end(ended);
}

void Following::end(const Generation& ended) {
  const auto after = next(self_.membership, GenerationEnded{ended.after});
  if (!after) return;
  self_.context.at(Step::generation_ended);
  self_.membership = *after;
  generations_.note_end(exchange_.sending().group(), matching_.remote());
  self_.ended = {Code::failed,
                 fmt::format("batch \"{}\": {}; every sender rank has to register it again",
                             self_.key.batch, ended.why)};
  log::info("bus: rank {}: {}", self_.key.rank, self_.ended.message);
  const bool by_us = ended.left == self_.key.rank;
  exchange_.end_generation(ended, {by_us ? Code::failed : Code::peer_lost, self_.ended.message});
}

void Following::follow_theirs(bool registers) {
  if (!matching_.can_recv().ok()) return;
  const Group& remote = *matching_.remote();
  const GenerationKey key = generations_.key_of(remote);
  auto seen = self_.context.catalog.generation(key);
  if (seen == nullptr) return;
  if (!seen->ended) {
    if (const auto left = generations_.who_left(key, seen)) {
      seen = std::make_shared<const Generation>(
          generations_.propose_end(key, *seen, *left, is_gone(*left)));
    }
  }
  Receiving& receiving = exchange_.receiving();
  if (const auto loss = receiving.follow(*seen)) {
    exchange_.fail(Direction::recv, loss->why, loss->rank);
  }
  receiving.join(*seen, matching_.own(), matching_.remote(),
                 registers || exchange_.has(Direction::recv));
}

}  // namespace tensorbus::bus
