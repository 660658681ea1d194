#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "bus/batch/receiving.h"
#include "bus/batch/senders.h"
#include "fabric/route/address.h"

namespace tensorbus::bus {

// The reader goes on up to the last round that all senders send.
std::optional<Receiving::Loss> Receiving::follow(const Generation& theirs) {
  if (reader_ == nullptr) reader_ = std::make_shared<Reader>(self_.context, self_.loan);
  const bool next = reader_->generation() != theirs.number;
  ends_after_.reset();
  if (!theirs.ended && !next) return std::nullopt;
  if (!next && reader_->goes_on(theirs.after)) {
    ends_after_ = theirs.after;
    return std::nullopt;
  }
  if (reader_->idle() && reader_->started_in() == 0) return std::nullopt;
  const Rank who = theirs.ended ? theirs.left : theirs.senders.begin()->first;
  const Status lost{Code::peer_lost,
                    fmt::format("batch \"{}\": {}", self_.key.batch,
                                theirs.why.empty() ? "the senders began anew" : theirs.why)};
  if (!reader_->idle()) reader_->leave(lost, who);
  // The sources may have been lost before the store told so: recvs that wait for them fail too.
  const bool had_started = reader_->started_in() != 0;
  reader_->forget_start();
  return had_started ? std::optional(Loss{lost, who}) : std::nullopt;
}

void Receiving::join(const Generation& theirs, const GroupPtr& own, const GroupPtr& remote) {
  if ((theirs.ended && theirs.after == 0) || started() || !own) return;
  // Plans are made from no other registrations than the record names, also when some of those ranks
  // have registered again since.
  if (group_ == nullptr || !is_of(*group_, theirs)) {
    if (!is_of(*remote, theirs)) return;
    group_ = remote;
  }
  if (passage_ == nullptr || !passage_->is_between(group_, own)) {
    passage_ = std::make_unique<OwnPassage>(group_, own, self_.key.rank);
  }
  if (!reader_->idle() && reader_->fingerprint() != passage_->passage.fingerprint) {
    // Made from older records than the senders have: the senders would not take it.
    reader_->leave({Code::withdrawn, "the plan has changed"}, std::nullopt);
  }
  if (reader_->idle() && !reader_->waits()) reader_->join(plan_of(theirs));
}

JoinPlan Receiving::plan_of(const Generation& theirs) const {
  const Passage& passage = passage_->passage;
  JoinPlan plan;
  plan.batch = self_.key.batch;
  plan.group = group_->name;
  plan.generation = theirs.number;
  plan.side = self_.key.side;
  plan.registration = self_.record.registration;
  plan.fingerprint = passage.fingerprint;
  plan.streams = plan::read_streams(passage.plans, self_.key.rank, self_.record.chunk_bytes);
  plan.targets = self_.ordered(*group_);
  for (const auto& [rank, member] : group_->members) {
    const Verify verify = std::max(self_.record.verify, member->verify);
    if (verify != Verify::off) plan.verify[rank] = verify;
  }
  if (!plan.verify.empty()) {
    plan.labels = std::make_shared<const std::vector<std::string>>(labels_of(*group_));
  }
  find_sources(plan);
  return plan;
}

void Receiving::find_sources(JoinPlan& plan) const {
  const Catalog& catalog = self_.context.catalog;
  std::set<Rank> far;  // read together with sources on other hosts: all in the same way
  for (const plan::Stream& stream : plan.streams) {
    std::set<std::string> hosts;
    for (const Rank rank : stream.source.ranks) {
      for (const auto& [end, side] : group_->sides) {
        if (const auto member = catalog.member({end, rank})) plan.sources[rank] = member->address;
      }
      hosts.insert(plan.sources[rank].identity.host);
    }
    if (hosts.size() > 1) far.insert(stream.source.ranks.begin(), stream.source.ranks.end());
  }
  if (self_.versioned()) {
    // The first sender knows of all readers, also of those that read nothing from it.
    const Rank rank = first_source(*group_);
    if (const auto member = catalog.member({group_->sides.begin()->first, rank})) {
      plan.sources.try_emplace(rank, member->address);
    }
  }
  for (const Rank rank : far) plan.sources[rank] = fabric::network_only(plan.sources[rank]);
}

bool Receiving::is_past_end() const {
  return ends_after_ && !self_.membership.closing() && !reader_->goes_on(*ends_after_);
}

bool Receiving::tries_again() {
  if (reader_ == nullptr || self_.membership.closing() || !reader_->idle()) return false;
  if (reader_->retry_at() > self_.context.now) return false;
  reader_->retry();
  return true;
}

}  // namespace tensorbus::bus
