// The public watch: a feed turned into events.
#pragma once

#include <deque>
#include <set>
#include <vector>

#include "store/etcd/feed.h"

namespace tensorbus::store::etcd {

class EtcdWatch final : public Watch {
 public:
  // Returns when etcd has the watch.
  EtcdWatch(std::shared_ptr<Access> access, const std::string& prefix, bool current,
            Deadline deadline);

  StoreEvent next(Deadline deadline, Cancellation* cancellation) override;
  std::vector<StoreEvent> next_all(Deadline deadline, Cancellation* cancellation) override;
  void close() noexcept override { closing_.cancel(); }

 private:
  Call call(Deadline deadline, Cancellation* cancellation);
  // Returns when there are events.
  void wait(Deadline deadline, Cancellation* cancellation);
  void report(Feed::Step step);
  // What must have happened between the last step and the snapshot.
  void report_difference(Feed::Step snapshot);

  const std::shared_ptr<Access> access_;
  const std::string prefix_;
  Cancellation closing_;
  Feed feed_;
  std::set<std::string> known_;  // keys that the reader believes to exist
  std::uint64_t revision_ = 0;
  std::deque<StoreEvent> events_;
};

}  // namespace tensorbus::store::etcd
