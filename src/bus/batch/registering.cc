// A batch from its registration on: what the records of the others mean for it, and when it is
// registered everywhere.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "bus/batch/batch.h"
#include "bus/registration/senders.h"

namespace tensorbus::bus {

void Batch::register_for(CommandId id, Deadline deadline) {
  registering_ = Waiting{id, deadline};
  self_.context.at(Step::registering);
}

void Batch::update() {
  if (self_.membership.presence == Presence::leaving) follow_leaving();
  if (self_.membership.presence != Presence::shown) return;
  try {
    look_at_groups();
    if (matching_.own_end()) end_unseen_generation(*matching_.own_end());
    if (matching_.own() && !self_.one_way(Direction::recv)) follow_own_generation();
    if (self_.shelved() && self_.one_way(Direction::recv)) {
      if (misfit_.ok()) exchange_.pulling().follow(matching_);
    } else if (matching_.remote() && !self_.one_way(Direction::send)) {
      follow_their_generation();
    }
  } catch (const FailedElsewhere& error) {
    return fail_registration(error.status(), false);
  } catch (const Error& error) {
    return fail_registration(error.status(), true);
  }
  check_registered();
}

// A batch that is registered goes on with the groups that it knows, and sees by them who has left.
void Batch::look_at_groups() {
  try {
    matching_.look(registering_.has_value());
    misfit_ = {};
  } catch (const Error& error) {
    if (registering_) throw;
    misfit_ = error.status();
    exchange_.pulling().fail(misfit_);
  }
  if (!exchange_.has(Direction::recv)) return;
  if (const Status refused = matching_.sender_refuses(); !refused.ok()) {
    exchange_.fail(Direction::recv, refused, std::nullopt);
  }
}

void Batch::follow_own_generation() {
  const Group& own = *matching_.own();
  const GenerationKey key = generations_.key_of(own);
  const auto current = self_.context.catalog.generation(key);
  const RecordSight seen = generations_.sight_of(own);
  const auto report = [&](Rank left, const std::string& why) {
    return generations_.propose_end(key, *current, left, why);
  };
  switch (move_of(self_.membership, seen)) {
    case SenderMove::wait:
      return;
    case SenderMove::begin:
      return begin_generation(*current);
    case SenderMove::begin_and_end:
      begin_generation(*current);
      return end_generation(*current);
    case SenderMove::end:
      return end_generation(*current);
    case SenderMove::end_unseen:
      return end_unseen_generation(*current);
    case SenderMove::end_as_dead:
      return end_generation(report(self_.key.rank, "this rank's agent was taken for dead"));
    case SenderMove::end_for_lost:
      return end_generation(report(*seen.left, is_gone(*seen.left)));
    case SenderMove::report_lost:
      report(*seen.left, is_gone(*seen.left));
      return;
    case SenderMove::propose:
      return generations_.propose_next(own);
  }
}

void Batch::begin_generation(const Generation& generation) {
  log::debug("bus: rank {}: generation {} of batch \"{}\" begins", self_.key.rank,
             generation.number, self_.key.batch);
  exchange_.begin_generation(generation, matching_.own());
  self_.happen(GenerationBegun{});
  self_.context.at(Step::generation_begun);
}

// No round of it goes on here.
void Batch::end_unseen_generation(Generation ended) {
  if (self_.membership.sending || self_.membership.ends_after) return;
  ended.after = 0;
  end_generation(ended);
}

void Batch::end_generation(const Generation& ended) {
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

void Batch::follow_their_generation() {
  if (!matching_.can_recv().ok()) return;
  const Group& remote = *matching_.remote();
  const GenerationKey key = generations_.key_of(remote);
  const auto current = self_.context.catalog.generation(key);
  if (current == nullptr) return;
  Generation seen = *current;
  if (!seen.ended) {
    if (const auto left = who_left(self_.context.catalog, self_.key.batch, seen)) {
      seen = generations_.propose_end(key, seen, *left, is_gone(*left));
    }
  }
  Receiving& receiving = exchange_.receiving();
  if (const auto loss = receiving.follow(seen)) {
    exchange_.fail(Direction::recv, loss->why, loss->rank);
  }
  receiving.join(seen, matching_.own(), matching_.remote(),
                 registering_.has_value() || exchange_.has(Direction::recv));
}

void Batch::check_registered() {
  if (!registering_) return;
  // The generation is over before it was complete: the next send says so.
  const bool over = self_.one_way(Direction::send) && self_.membership.stale();
  if (over || (self_.shelved() ? has_shelf() : meets_others())) end_registering({});
}

bool Batch::meets_others() {
  unsubscribed_.clear();
  if (!matching_.matched()) return false;
  if (matching_.can_recv().ok() && !has_joined()) return false;
  return !matching_.can_send().ok() || has_readers();
}

// Whether a version can be published, or the shelves of the senders be read.
bool Batch::has_shelf() {
  if (self_.one_way(Direction::send)) return exchange_.publishing().active();
  if (!matching_.matched()) return false;
  const Pulling& pulling = exchange_.pulling();
  if (!matching_.can_recv().ok() || pulling.started()) return true;
  self_.missing = "not all senders have taken this rank's subscription";
  if (!pulling.trouble().empty()) self_.missing += ": " + pulling.trouble();
  return false;
}

// Whether this rank reads from the senders' generation, or no generation comes that it could read
// from.
bool Batch::has_joined() {
  const Reader* reader = exchange_.receiving().reader();
  const Group& remote = *matching_.remote();
  const auto theirs = self_.context.catalog.generation(generations_.key_of(remote));
  // A generation that a sender has left goes on for the readers that are joining it.
  const bool joins = reader != nullptr && !reader->idle();
  const bool comes = theirs == nullptr || !theirs->ended || joins || is_fresh(remote, theirs.get());
  if (!comes || exchange_.receiving().started()) return true;
  self_.missing = "the senders' generation has not begun";
  if (reader != nullptr && theirs != nullptr) {
    self_.missing = "not all senders have taken this rank's subscription";
    if (!reader->trouble().empty()) self_.missing += ": " + reader->trouble();
  }
  return false;
}

// Whether all readers have subscribed to this rank, or no generation comes that they could read.
bool Batch::has_readers() {
  const Source* source = exchange_.sending().source();
  const Group& own = *matching_.own();
  const auto ours = self_.context.catalog.generation(generations_.key_of(own));
  const bool comes =
      ours == nullptr || !ours->ended || source != nullptr || is_fresh(own, ours.get());
  if (!comes || self_.membership.stale()) return true;
  if (source == nullptr) {
    self_.missing = "the generation has not begun";
    return false;
  }
  const auto is_missing = [&](Rank reader) {
    return !source->has_started(reader) && generations_.may_join(reader);
  };
  std::ranges::copy_if(matching_.readers(), std::back_inserter(unsubscribed_), is_missing);
  return unsubscribed_.empty();
}

std::string Batch::what_is_missing() {
  matching_.explain();
  if (unsubscribed_.empty()) return self_.missing;
  return fmt::format("reader rank {} has not subscribed", fmt::join(unsubscribed_, ", "));
}

void Batch::end_registering(const Status& status) {
  self_.answer(std::exchange(registering_, std::nullopt)->id, status);
}

void Batch::fail_registration(const Status& why, bool tell) {
  if (!registering_) return;
  matching_.dispute_all();
  if (tell) {
    // The others must know, and the ranks that register later.
    self_.record.failed = why.message;
    for (const auto& [rank, number] : matching_.disputed()) self_.record.unfit[number] = rank;
    self_.show_record();
  }
  end_registering(why);
  close(std::nullopt, why);
}

void Batch::expire_registration() {
  if (!registering_ || registering_->deadline.at() > self_.context.now) return;
  const Status late{Code::timeout, fmt::format("batch \"{}\" is not registered everywhere: {}",
                                               self_.key.batch, what_is_missing())};
  end_registering(late);
  close(std::nullopt, late);
}

}  // namespace tensorbus::bus
