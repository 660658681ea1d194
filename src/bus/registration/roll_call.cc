#include "bus/registration/roll_call.h"

#include <algorithm>

#include "bus/match/work.h"
#include "bus/registration/senders.h"

namespace tensorbus::bus {

std::optional<Rank> RollCall::who_left(const Catalog& catalog, const std::string& batch,
                                       const std::shared_ptr<const Generation>& generation) {
  if (generation == complete_ && is_unchanged(catalog, batch)) return std::nullopt;
  ++matching_work().roll_calls;
  complete_.reset();
  then_.clear();
  for (const auto& [rank, sender] : generation->senders) {
    const BatchMember* member = catalog.find(batch, rank, sender);
    if (member == nullptr) return rank;
    for (const End& end : member->ends) {
      if (!then_.contains(end)) then_[end] = catalog.revision(batch, end);
    }
  }
  complete_ = generation;
  return std::nullopt;
}

// A registration that is replaced or vanishes is a change at each of its ends.
bool RollCall::is_unchanged(const Catalog& catalog, const std::string& batch) const {
  return std::ranges::all_of(
      then_, [&](const auto& each) { return catalog.revision(batch, each.first) == each.second; });
}

bool RollCall::is_of(const GroupPtr& group, const std::shared_ptr<const Generation>& generation) {
  if (group == group_ && generation == compared_) return is_of_;
  ++matching_work().roll_calls;
  group_ = group;
  compared_ = generation;
  is_of_ = bus::is_of(*group, *generation);
  return is_of_;
}

}  // namespace tensorbus::bus
