#include "bus/registration/generations.h"

#include <fmt/format.h>

#include <algorithm>

#include "bus/registration/senders.h"

namespace tensorbus::bus {
namespace {

constexpr Duration patience_with_store = std::chrono::seconds(1);

}  // namespace

RecordSight Generations::sight_of(const GroupPtr& senders) {
  const GenerationKey key = key_of(*senders);
  const auto current = self_.context.catalog.generation(key);
  const Sender* mine = place_in(current.get(), self_.key.rank, self_.record);
  RecordSight sight;
  sight.exists = current != nullptr;
  sight.ended = current != nullptr && current->ended;
  sight.has_us = mine != nullptr;
  if (mine != nullptr) {
    sight.after = current->after;
    sight.as_we_are = mine->incarnation == self_.record.incarnation;
    sight.is_of_group = roll_calls_[key].is_of(senders, current);
  }
  if (sight.exists && !sight.ended) {
    sight.left = who_left(key, current);
  } else if (mine == nullptr) {
    // Of a batch whose tensors change some senders may have the new ones and some not yet.
    sight.group_is_new =
        is_fresh(*senders, current.get()) && (!self_.versioned() || fit_together(*senders));
  }
  return sight;
}

void Generations::propose_next(const Group& senders) {
  const GenerationKey key = key_of(senders);
  const auto raw = self_.context.catalog.raw_generation(key);
  const std::string proposal = raw.value_or("");
  if (proposed_over_ == proposal) return;
  const auto last = self_.context.catalog.generation(key);
  proposed_over_ = proposal;
  self_.context.directory.compare_and_set(to_text(key), raw, encode(make_next(senders, last.get())),
                                          0);
}

Generation Generations::make_next(const Group& senders, const Generation* last) const {
  Generation next;
  next.number = last == nullptr ? 1 : last->number + 1;
  next.back_soon = last != nullptr && last->back_soon;
  for (const auto& [rank, member] : senders.members) {
    next.senders[rank] = {member->incarnation, member->registration};
  }
  if (!self_.versioned()) return next;
  if (last != nullptr) next.version = last->version;
  for (const auto& [side, ranks] : self_.context.catalog.versions(self_.key.batch)) {
    for (const auto& [rank, version] : ranks) next.version = std::max(next.version, version);
  }
  return next;
}

Generation Generations::propose_end(const GenerationKey& key, Generation generation, Rank left,
                                    const std::string& why, std::int64_t after, bool back_soon) {
  const auto raw = self_.context.catalog.raw_generation(key);
  generation.ended = true;
  generation.left = left;
  generation.why = why;
  generation.after = after;
  generation.back_soon = back_soon;
  self_.context.directory.compare_and_set(to_text(key), raw, encode(generation), 0);
  return generation;
}

void Generations::note_end(GroupPtr senders, GroupPtr readers) {
  senders_then_ = std::move(senders);
  readers_then_ = std::move(readers);
}

bool Generations::is_there(const Group& group, Rank rank) const {
  return self_.context.catalog.has(self_.key.batch, rank, group.members.at(rank)->registration);
}

bool Generations::may_join(Rank reader) const {
  if (!self_.membership.ends_after) return true;
  if (readers_then_ == nullptr || !readers_then_->members.contains(reader)) return false;
  if (!is_there(*readers_then_, reader)) return false;
  const Passage passage = make_passage(*senders_then_, *readers_then_, reader);
  for (const plan::Stream& stream :
       plan::read_streams(passage.plans, reader, self_.record.chunk_bytes)) {
    for (const Rank source : stream.source.ranks) {
      if (!is_there(*senders_then_, source)) return false;
    }
  }
  return !self_.versioned() || is_there(*senders_then_, first_source(*senders_then_));
}

void Generations::begin_leaving(bool back_soon) {
  back_soon_ = back_soon;
  leaves_by_ = self_.context.now + patience_with_store;
  proposed_over_.reset();
}

bool Generations::tell_leaving(const Group& senders, std::int64_t version) {
  const GenerationKey key = key_of(senders);
  const std::int64_t last = self_.membership.leaves_after;
  const auto current = self_.context.catalog.generation(key);
  const bool in_it = place_in(current.get(), self_.key.rank, self_.record) != nullptr;
  if (!in_it || (current->ended && current->after <= last)) return true;
  const auto raw = self_.context.catalog.raw_generation(key);
  if (proposed_over_ == raw) return false;
  proposed_over_ = raw;
  Generation left = *current;
  // The next generation counts on from there.
  if (self_.versioned()) left.version = std::max(left.version, version);
  propose_end(key, std::move(left), self_.key.rank,
              fmt::format("rank {} has ended it after round {}", self_.key.rank, last), last,
              back_soon_);
  return false;
}

}  // namespace tensorbus::bus
