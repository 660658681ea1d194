// The keys of a range, and then their changes, one revision at a time, across lost connections.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "store/etcd/stream.h"

namespace tensorbus::store::etcd {

class Feed {
 public:
  // Either all keys there are (as puts), or the changes of one revision.
  struct Step {
    bool snapshot = false;
    // The snapshot's data has nothing to do with what came before: revisions started anew.
    bool new_data = false;
    std::uint64_t revision = 0;
    std::vector<StoreEvent> events;
  };

  // Snapshots come without values unless `values`.
  Feed(std::shared_ptr<Access> access, KeyRange range, bool values);

  // The first step is a snapshot; another snapshot comes when etcd cannot tell the changes any
  // more, because etcd forgot them (compaction) or lost its data. Nothing at the deadline; throws
  // Error(unreachable) if there is no connection then.
  std::optional<Step> next(const Call& call);
  // Until etcd has the watch, or cannot resume it. False if the deadline left no time for that.
  // Only after the first step.
  bool connect(const Call& call);
  void want_values() noexcept { values_ = true; }

 private:
  Step take_snapshot(const Call& call);
  bool resumable(const Call& call);
  void accept(WatchStream::Message message);

  const std::shared_ptr<Access> access_;
  const KeyRange range_;
  bool values_;
  bool snapshot_needed_ = true;
  bool connection_lost_ = false;
  std::string lost_cause_;
  std::string data_id_;
  std::int64_t revision_ = 0;  // up to which all is known
  std::unique_ptr<WatchStream> stream_;
  std::deque<Step> steps_;
  Backoff backoff_;
};

}  // namespace tensorbus::store::etcd
