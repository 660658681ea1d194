#include "bus/shelf/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tensorbus::bus {
namespace {

std::string wish_of(const Propose& proposal) {
  if (proposal.version) return fmt::format("version {}", *proposal.version);
  return fmt::format("one above {}", proposal.above);
}

bool excludes(const Propose& proposal, std::int64_t version) {
  return proposal.version ? *proposal.version != version : version <= proposal.above;
}

bool offers(const Propose& proposal, std::int64_t version) {
  return std::ranges::find(proposal.versions, version) != proposal.versions.end();
}

// All sources of the rank have had a later version, and not all have this one: the version does not
// come back.
bool has_lost(const Propose& proposal, std::int64_t version) {
  return !offers(proposal, version) &&
         std::ranges::any_of(proposal.versions, [&](auto each) { return each > version; });
}

}  // namespace

void Agreement::set_members(std::set<Member> members) {
  if (members == members_) return;
  for (const Member& member : members_) {
    if (!members.contains(member)) proposals_.erase(member);
  }
  members_ = std::move(members);
  anew_ = true;
}

void Agreement::propose(const Member& member, std::int64_t generation, const Propose& proposal,
                        bool anew) {
  proposals_[member] = {generation, proposal};
  anew_ = anew_ || anew;
}

void Agreement::vote(const Member& member, const Vote& vote) {
  if (stage_ != Stage::reading || vote.number != number_) return;
  if (vote.read) {
    read_.insert(member);
  } else {
    lost_ = true;
  }
}

bool Agreement::complete() const {
  return std::ranges::all_of(members_,
                             [&](const Member& each) { return proposals_.contains(each); });
}

Waits Agreement::waits() const {
  Waits waits;
  for (const Member& member : members_) {
    if (!proposals_.contains(member) && waits.pulls.size() < most_named) {
      waits.pulls.push_back(member.first);
    }
    if (stage_ == Stage::reading && !read_.contains(member) && waits.reads.size() < most_named) {
      waits.reads.push_back(member.first);
    }
  }
  return waits;
}

std::optional<Agreement::Told> Agreement::next() {
  if (members_.empty() || !complete()) return stop();
  if (std::exchange(anew_, false)) {
    if (auto told = stop()) return told;
  }
  if (auto refusal = refuse()) return refusal;
  if (stage_ == Stage::reading && !lost_) return follow_reading();
  const std::int64_t now = generation();
  if (now == 0 || (generation_ != 0 && now != generation_)) return stop();
  return choose_next();
}

std::optional<Agreement::Told> Agreement::stop() {
  if (generation_ == 0) return std::nullopt;
  stage_ = Stage::gathering;
  lost_ = must_pin_ = narrows_ = false;
  pinned_ = version_ = generation_ = 0;
  read_.clear();
  return Told{0, Choose{++number_, 0, 0, false}};
}

std::optional<Agreement::Told> Agreement::follow_reading() {
  const bool all = std::ranges::includes(read_, members_);
  return all ? std::optional(decide()) : std::nullopt;
}

Agreement::Told Agreement::decide() {
  const Told told{generation_, Decide{number_, version_}};
  end();
  return told;
}

std::optional<Agreement::Told> Agreement::choose_next() {
  if (std::exchange(lost_, false)) {
    stage_ = Stage::gathering;
    must_pin_ = true;
  }
  if (stage_ == Stage::pinning) take_pins();
  if (!must_pin_ && best() != 0) return choose(best());
  if (stage_ == Stage::pinning) return std::nullopt;
  if (must_pin_ || more()) return ask_to_pin();
  if (!std::exchange(narrows_, false)) return std::nullopt;
  return Told{generation_, Choose{++number_, 0, pinned_, false}};
}

Agreement::Told Agreement::choose(std::int64_t version) {
  stage_ = Stage::reading;
  read_.clear();
  narrows_ = false;
  generation_ = generation();
  version_ = version;
  return {generation_, Choose{++number_, version, pinned_ > version ? pinned_ : 0, false}};
}

Agreement::Told Agreement::ask_to_pin() {
  stage_ = Stage::pinning;
  generation_ = generation();
  pinned_ = 0;
  return {generation_, Choose{++number_, 0, 0, true}};
}

void Agreement::end() {
  stop();
  for (const Member& member : members_) proposals_.erase(member);
}

// All sources of all ranks keep the largest version that one source of one rank had, once they have
// it: each source keeps what it had and all that comes.
void Agreement::take_pins() {
  const auto has_pinned = [&](const Member& each) {
    return proposals_.at(each).wish.at == number_;
  };
  if (!std::ranges::all_of(members_, has_pinned)) return;
  std::optional<std::int64_t> named;
  for (const Member& member : members_) {
    const Propose& wish = proposals_.at(member).wish;
    pinned_ = std::max(pinned_, wish.pinned);
    if (wish.version) named = wish.version;
  }
  pinned_ = named.value_or(pinned_);
  stage_ = Stage::gathering;
  must_pin_ = false;
  narrows_ = true;
}

std::int64_t Agreement::generation() const {
  std::set<std::int64_t> all;
  for (const Member& member : members_) all.insert(proposals_.at(member).generation);
  return all.size() == 1 ? *all.begin() : 0;
}

std::int64_t Agreement::best() const {
  std::int64_t best = 0;
  for (const std::int64_t version : proposals_.at(*members_.begin()).wish.versions) {
    const bool everywhere = std::ranges::all_of(
        members_, [&](const Member& each) { return offers(proposals_.at(each).wish, version); });
    // What all keep cannot be missed once more.
    if (everywhere && version == pinned_) return version;
    if (everywhere) best = std::max(best, version);
  }
  return best;
}

bool Agreement::more() const {
  return std::ranges::any_of(members_, [&](const Member& each) {
    const Propose& wish = proposals_.at(each).wish;
    return wish.more && (wish.at == 0 || wish.at == number_);
  });
}

// No rank gets a version that one rank names, and another will not take or cannot have any more.
std::optional<Agreement::Told> Agreement::refuse() {
  const auto wish = [&](const Member& each) -> const Propose& { return proposals_.at(each).wish; };
  const auto one = std::ranges::find_if(
      members_, [&](const Member& each) { return wish(each).version.has_value(); });
  if (one == members_.end() || stage_ == Stage::reading || generation() == 0) return std::nullopt;
  const std::int64_t version = *wish(*one).version;
  const auto other = std::ranges::find_if(
      members_, [&](const Member& each) { return excludes(wish(each), version); });
  if (other != members_.end()) {
    return give_up(
        {Code::invalid_argument,
         fmt::format("the ranks of side \"{}\" ask for versions that exclude each other: rank {} "
                     "for version {}, rank {} for {}",
                     side_, one->first, version, other->first, wish_of(wish(*other)))},
        Absence::none);
  }
  const auto late = std::ranges::find_if(
      members_, [&](const Member& each) { return has_lost(wish(each), version); });
  if (late == members_.end()) return std::nullopt;
  return give_up(
      {Code::failed, fmt::format("rank {} of side \"{}\" asks for version {}, which rank "
                                 "{} cannot have any more: it was recycled, or never "
                                 "published",
                                 one->first, side_, version, late->first)},
      Absence::gone);
}

Agreement::Told Agreement::give_up(Status why, Absence absence) {
  end();
  return {0, GiveUp{std::move(why), absence, 0}};
}

}  // namespace tensorbus::bus
