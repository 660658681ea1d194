#include "bus/registration/matching.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "bus/match/problems.h"
#include "bus/registration/senders.h"

namespace tensorbus::bus {
namespace {

std::vector<std::pair<Rank, std::uint64_t>> signature(const Group& one, const Group& other) {
  std::vector<std::pair<Rank, std::uint64_t>> all;
  for (const Group* group : {&one, &other}) {
    for (const auto& [rank, member] : group->members) {
      all.emplace_back(rank, member->registration ^ member->incarnation);
    }
    all.emplace_back(-1, 0);
  }
  return all;
}

// A registration that failed after it was seen takes part in nothing.
void drop_if_failed(GroupPtr& group, const KnownFailures& known) {
  if (group == nullptr || known.empty()) return;
  const auto has_failed = [&](const auto& entry) {
    return known.contains({entry.first, entry.second->registration});
  };
  if (std::ranges::any_of(group->members, has_failed)) group.reset();
}

void check_is_one_group(const Catalog& catalog, const std::string& batch, const Group& group,
                        const KnownFailures& known) {
  const GroupFinding found = find_group(catalog, batch, {group.name}, known);
  if (!found.group || found.group->sides.size() == group.sides.size()) return;
  throw Error(Code::invalid_argument,
              fmt::format("batch \"{}\": its tensors come from groups of senders that share no "
                          "rank; register them as batches of their own",
                          batch));
}

}  // namespace

Matching::Matching(OwnRegistration& self, KnownFailures disputed)
    : self_(self),
      readers_groups_(self.key.rank),
      known_(self.context.catalog.failed(self.key.batch)),
      disputed_(std::move(disputed)) {
  // A rank that registers after a refusal is told of the refusal as well, once.
  for (const auto& refusal : self.context.catalog.refused(self.key.batch)) {
    if (!disputed_.contains(refusal)) known_.erase(refusal);
  }
}

void Matching::look(bool registering) {
  const Catalog& catalog = self_.context.catalog;
  const std::string& batch = self_.key.batch;
  // The ranks that this registration did not fit have noticed it, too.
  for (const auto& failure : catalog.failed(batch)) {
    if (disputed_.contains(failure)) known_.insert(failure);
  }
  known_.merge(catalog.outlived(batch, self_.key.rank, self_.record.registration));
  if (self_.one_way(Direction::send)) pass_over_failed_receivers();
  GroupFinding own = own_search_.find(catalog, batch, self_.record.ends, known_);
  GroupFinding remote = find_remote();
  note_own_end(own);
  drop_if_mixed(own, Direction::send);
  if (!self_.shelved()) drop_if_mixed(remote, Direction::recv);
  unexplained_ = own.in_short || remote.in_short;
  take_groups(own, remote);
  if (!remote_) self_.missing += why_unfit_;
  if (own_ && self_.shelved()) check_shelf();
  if (own_ && !remote_ && registering) check_own_without_receivers();
  if (!own_ || !remote_) return;
  auto now = signature(*own_, *remote_);
  if (now != matched_) match(std::move(now), registering);
}

// A sender that publishes to a shelf faces nobody; the readers of the shelf find what all senders
// have a version of, also when the senders have left or register again.
GroupFinding Matching::find_remote() {
  const Catalog& catalog = self_.context.catalog;
  const std::string& batch = self_.key.batch;
  if (self_.shelved()) return self_.one_way(Direction::send) ? GroupFinding() : find_shelves();
  return remote_search_.find(catalog, batch, remote_ends(self_.record), known_);
}

void Matching::explain() {
  if (!std::exchange(unexplained_, false)) return;
  const Catalog& catalog = self_.context.catalog;
  const std::string& batch = self_.key.batch;
  try {
    GroupFinding own = find_group(catalog, batch, self_.record.ends, known_);
    drop_if_mixed(own, Direction::send);
    GroupFinding remote = find_remote();
    if (!self_.shelved()) {
      remote = find_group(catalog, batch, remote_ends(self_.record), known_);
      drop_if_mixed(remote, Direction::recv);
    }
    self_.missing = what_is_missing(own, remote) + (remote_ ? "" : why_unfit_);
  } catch (const Error& error) {
    self_.missing = error.what();
  }
}

std::string Matching::what_is_there_instead() const {
  std::set<std::string> names;
  for (const End& end : remote_ends(self_.record)) {
    names.merge(self_.context.catalog.batches_at(end));
  }
  return names.contains(self_.key.batch) ? "" : did_you_mean(names);
}

GroupFinding Matching::find_shelves() {
  const Catalog& catalog = self_.context.catalog;
  const std::string& batch = self_.key.batch;
  if (shelves_seen_ == catalog.shelves_revision()) return shelves_found_;
  shelves_seen_.reset();
  GroupFinding finding;
  finds_shelves_ = false;
  finding.missing = fmt::format("nobody has published \"{}\" yet", batch);
  for (const std::int64_t generation : catalog.shelved_generations(batch)) {
    Catalog shelves = catalog.shelved(batch, generation);
    const GroupFinding found = find_group(shelves, batch, remote_ends(self_.record));
    finding.missing = found.missing;
    if (!found.group) continue;
    shelved_generation_ = generation;
    shelves_ = std::move(shelves);
    finds_shelves_ = true;
    finding.group = found.group;
    break;
  }
  shelves_seen_ = catalog.shelves_revision();
  shelves_found_ = finding;
  return finding;
}

// The others of a sender of a shelf are those of its own side.
void Matching::check_shelf() const {
  check_agrees(*own_);
  for (const auto& [rank, member] : own_->members) {
    if (member->versioned && member->versioned->keep == self_.record.versioned->keep) continue;
    throw Error(Code::invalid_argument,
                fmt::format("batch \"{}\": rank {} keeps {} versions, rank {} keeps {}",
                            self_.key.batch, self_.key.rank, *self_.record.versioned->keep, rank,
                            member->versioned ? member->versioned->keep.value_or(0) : 0));
  }
}

// Receivers that saw the senders disagree have failed and were passed over: with none of them left
// nobody else tells the senders.
void Matching::check_own_without_receivers() const {
  if (!why_unfit_.empty() && !waits_for_others_to_change()) check_agrees(*own_);
}

// A registration that an agent was given again, because it had replaced another, stands in a
// generation that has ended; the others may have registered anew before.
void Matching::note_own_end(const GroupFinding& own) {
  own_end_.reset();
  if (!own.group || !self_.one_way(Direction::send)) return;
  const auto last = self_.context.catalog.generation({self_.key.batch, own.group->name});
  if (last == nullptr || !last->ended || !is_mixed(*own.group, last.get())) return;
  if (place_in(last.get(), self_.key.rank, self_.record) != nullptr) own_end_ = *last;
}

// Senders change their tensors one after the other: while some have and some have not, they fit
// nobody.
void Matching::drop_if_mixed(GroupFinding& finding, Direction direction) const {
  if (!finding.group || !self_.one_way(direction)) return;
  const auto last = self_.context.catalog.generation({self_.key.batch, finding.group->name});
  if (!is_mixed(*finding.group, last.get())) return;
  std::vector<Rank> old;
  for (const auto& [rank, member] : finding.group->members) {
    if (place_in(last.get(), rank, *member) != nullptr) old.push_back(rank);
  }
  finding.missing = fmt::format("sender rank {} has not registered again", fmt::join(old, ", "));
  finding.group.reset();
}

std::string Matching::what_is_missing(const GroupFinding& own, const GroupFinding& remote) const {
  const bool both = !own.missing.empty() && !remote.missing.empty();
  return own.missing + (both ? "; " : "") + remote.missing;
}

void Matching::take_groups(const GroupFinding& own, const GroupFinding& remote) {
  self_.missing = what_is_missing(own, remote);
  // The record of this rank may still be an older one: the store has not told of the new one yet.
  const auto take = [](GroupPtr& known, GroupPtr found) {
    if (found == nullptr) return;
    take_group(found, known);
    known = found;
  };
  if (own.group &&
      own.group->members.at(self_.key.rank)->registration == self_.record.registration) {
    take(own_, own.group);
  }
  // Before the store has told of this registration, the catalog may have registrations of others
  // that were withdrawn before this one was made; those registrations would be kept.
  if (own_) take(remote_, remote.group);
  drop_if_failed(own_, known_);
  drop_if_failed(remote_, known_);
}

void Matching::match(std::vector<std::pair<Rank, std::uint64_t>> now, bool registering) {
  if (!self_.shelved()) {
    check_is_one_group(self_.context.catalog, self_.key.batch, *remote_, known_);
  }
  try {
    check_tensors(*own_, *remote_);
  } catch (const Error& error) {
    // What a receiver asks for in vain is the receiver's mistake: the receiver is told, and may try
    // again.
    const bool sends = self_.one_way(Direction::send) && agrees(*own_);
    if (!registering || (!sends && !waits_for_others_to_change())) throw;
    self_.missing = fmt::format(
        "{}: {}",
        sends ? "the receivers' tensors do not fit" : "others have not changed their tensors",
        error.what());
    remote_.reset();
    return;
  }
  can_send_ = may_send(*own_, *remote_);
  if (can_send_.ok()) can_send_ = are_named(*own_, *remote_);
  can_recv_ = may_send(*remote_, *own_);
  const Status wrong_way{Code::invalid_argument,
                         fmt::format("batch \"{}\" goes the other way", self_.key.batch)};
  if (self_.one_way(Direction::recv)) can_send_ = wrong_way;
  if (self_.one_way(Direction::send)) can_recv_ = wrong_way;
  readers_ =
      can_send_.ok() ? serving(own_, remote_).readers(self_.versioned()) : std::vector<Rank>();
  matched_ = std::move(now);
}

// Passes over receivers that did not fit, which ends no send; but not over ranks that cannot take
// part at all.
void Matching::pass_over_failed_receivers() {
  why_unfit_.clear();
  if (!self_.context.catalog.has_failed(self_.key.batch)) return;
  for (const End& end : remote_ends(self_.record)) {
    for (const auto& [rank, member] : self_.context.catalog.members(end)) {
      const auto batch = self_.context.catalog.registration(self_.key.batch, end, rank);
      if (batch == nullptr || batch->failed.empty() || batch->refused) continue;
      known_.insert({rank, batch->registration});
      why_unfit_ = fmt::format("; rank {} failed: {}", rank, batch->failed);
    }
  }
}

// All registrations of the groups but this rank's own.
KnownFailures Matching::others() const {
  KnownFailures others;
  for (const GroupPtr& group : {own_, remote_}) {
    if (group == nullptr) continue;
    for (const auto& [rank, member] : group->members) {
      if (member->registration != self_.record.registration) {
        others.insert({rank, member->registration});
      }
    }
  }
  return others;
}

// A rank that had a version before has changed its tensors: so will the others, in their own time.
// The same holds if this rank tried with other tensors before and the registrations of the others
// are those that did not fit.
bool Matching::waits_for_others_to_change() const {
  const bool had_version = self_.versioned() && self_.record.versioned->last != 0;
  if (self_.one_way(Direction::recv)) return had_version;  // a send is not ended by its receivers
  return had_version || std::ranges::includes(disputed_, others());
}

void Matching::dispute_all() {
  disputed_ = others();
  disputed_.merge(self_.context.catalog.refused(self_.key.batch));
}

Status Matching::sender_refuses() {
  const Catalog& catalog = self_.context.catalog;
  if (self_.shelved() || !catalog.has_failed(self_.key.batch)) return {};
  for (const End& end : remote_ends(self_.record)) {
    for (const auto& [rank, member] : catalog.members(end)) {
      const auto batch = catalog.registration(self_.key.batch, end, rank);
      if (batch == nullptr || !batch->refused) continue;
      if (!disputed_.insert({rank, batch->registration}).second) continue;
      return failure_of(self_.key.batch, rank, *batch);
    }
  }
  return {};
}

}  // namespace tensorbus::bus
