#include "bus/registration/course.h"

#include <algorithm>
#include <set>

#include "fabric/route/address.h"

namespace tensorbus::bus {

void Course::set(const GroupPtr& senders, const GroupPtr& own) {
  if (passage_ != nullptr && senders == senders_ && own == own_) return;
  senders_ = senders;
  own_ = own;
  const TimePoint begin = self_.context.moment();
  passage_ = std::make_unique<const Passage>(make_passage(*senders_, *own_, self_.key.rank));
  self_.context.count_planning(begin);
}

std::vector<TensorView> Course::targets() const {
  if (senders_ == nullptr) return {};
  return self_.ordered(target_order(*senders_, *own_, self_.record));
}

JoinPlan Course::plan(std::int64_t generation, const Catalog& catalog) const {
  JoinPlan plan;
  plan.batch = self_.key.batch;
  plan.group = senders_->name;
  plan.generation = generation;
  plan.side = self_.key.side;
  plan.registration = self_.record.registration;
  plan.fingerprint = passage_->fingerprint;
  plan.version = self_.last_version();
  plan.promises = self_.shelved() && self_.record.versioned->delta;
  const TimePoint begin = self_.context.moment();
  plan.streams = plan::read_streams(passage_->plans, self_.key.rank, self_.record.chunk_bytes);
  self_.context.count_planning(begin);
  plan.targets = targets();
  for (const auto& [rank, member] : senders_->members) {
    const Verify verify = std::max(self_.record.verify, member->verify);
    if (verify != Verify::off) plan.verify[rank] = verify;
  }
  if (!plan.verify.empty() || plan.promises) {
    plan.labels = std::make_shared<const std::vector<std::string>>(labels_of(*senders_));
  }
  find_sources(plan, catalog);
  return plan;
}

void Course::find_sources(JoinPlan& plan, const Catalog& catalog) const {
  std::set<Rank> far;  // read together with sources on other hosts: all in the same way
  for (const plan::Stream& stream : plan.streams) {
    std::set<std::string> hosts;
    for (const Rank rank : stream.source.ranks) {
      for (const auto& [end, side] : senders_->sides) {
        if (const auto member = catalog.member({end, rank})) plan.sources[rank] = member->address;
      }
      hosts.insert(plan.sources[rank].identity.host);
    }
    if (hosts.size() > 1) far.insert(stream.source.ranks.begin(), stream.source.ranks.end());
  }
  if (self_.versioned() && (!self_.shelved() || plan.sources.empty())) {
    // The first sender knows of all readers, also of those that read nothing from it; and whoever
    // pulls nothing hears from it which versions there are.
    const Rank rank = first_source(*senders_);
    if (const auto member = catalog.member({senders_->sides.begin()->first, rank})) {
      plan.sources.try_emplace(rank, member->address);
    }
  }
  for (const Rank rank : far) plan.sources[rank] = fabric::network_only(plan.sources[rank]);
}

}  // namespace tensorbus::bus
