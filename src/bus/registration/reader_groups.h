// The groups of readers that a sender serves. Readers of several groups come in any order.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "bus/match/group_search.h"
#include "bus/match/serving.h"
#include "bus/round/messages.h"

namespace tensorbus::bus {

class ReaderGroups {
 public:
  // Of a sender with this rank.
  explicit ReaderGroups(Rank rank) : rank_(rank) {}

  // What a subscription gets from this rank, which is one of `sources`. Nothing: the records that
  // the reader made its plan from are not all here yet. Throws Error if the subscription gets
  // nothing at all. `expected`: the reader's group as this rank knows it beforehand, or null.
  struct Served {
    std::shared_ptr<const BatchMember> reader;
    std::vector<plan::Stream> streams;  // cut as the reader wants them
  };
  std::optional<Served> serve(const Catalog& catalog, const GroupPtr& sources,
                              const Subscribe& wish, const KnownFailures& known,
                              const GroupPtr& expected);
  // What is served to a group of readers.
  Serving& serving(const GroupPtr& sources, const GroupPtr& targets);

 private:
  // The group that a reader was in when it made its plan; null if this rank has not seen that
  // group.
  GroupPtr group_of(const Catalog& catalog, const BatchKey& key, const BatchMember& reader,
                    const KnownFailures& known, const GroupPtr& expected);

  const Rank rank_;
  struct Known {
    GroupSearch search;
    GroupPtr last{};  // that was there, unless it was expected
  };
  std::map<std::vector<End>, Known> groups_;          // who has subscribed, by its ends
  std::map<End, std::unique_ptr<Serving>> servings_;  // the last, by the readers' group
};

}  // namespace tensorbus::bus
