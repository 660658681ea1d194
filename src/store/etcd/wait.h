// Waiting for a condition, woken by etcd.
#pragma once

#include <map>
#include <set>

#include "store/etcd/feed.h"

namespace tensorbus::store::etcd {

// Which keys fulfil a condition, kept up to date change by change. A plain value.
class Matches {
 public:
  explicit Matches(Condition condition);

  void apply(const Feed::Step& step);
  bool satisfied() const { return keys_.size() >= condition_.count; }
  WaitResult result() const;
  // For a message: how many match and which do not.
  std::string shortfall() const;

 private:
  void apply(const StoreEvent& event);

  Condition condition_;
  std::set<std::string> keys_;
  std::string value_;  // of the key, when the condition is not a pattern
};

WaitResult wait(const std::shared_ptr<Access>& access, const Condition& condition,
                const Call& call);

}  // namespace tensorbus::store::etcd
