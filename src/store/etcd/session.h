// Writes that apply exactly once, although requests are sent again when an answer is lost.
//
// Each transaction also writes a marker key of ours, on the condition that the marker has been
// written exactly as often as we know. Of two copies of a transaction only one can meet that
// condition; the answer to the other copy tells that the transaction has been done. A marker serves
// one write at a time, so concurrent writes use several. All markers hang on a lease that is long
// and not kept alive: a fresh lease is taken when half of the time has passed, and what a killed
// process leaves behind goes away by itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "store/etcd/gateway.h"

namespace tensorbus::store::etcd {

struct Transaction {
  Json compare = Json::array();
  Json success = Json::array();
  Json failure = Json::array();
};

struct WriteResult {
  bool applied = false;  // the conditions held
  // Answers to the operations of the branch taken. Nothing (null) if the transaction was applied by
  // a copy whose answer was lost.
  Json responses;

  const Json& response(std::size_t index, const char* kind) const;
};

class Session {
 public:
  explicit Session(Gateway& gateway) : gateway_(gateway) {}

  // Throws Refusal(lease_not_found) when a lease that the operations use is gone; then nothing was
  // applied.
  WriteResult write(const Transaction& transaction, const Call& call);

  // Names the data that etcd holds: another name when etcd has started with an empty data
  // directory.
  std::string data_id(const Call& call);

  // Removes the markers.
  void end(const Call& call);

 private:
  struct Marker {
    std::string key;
    std::int64_t version = 0;  // how often it has been written
  };
  struct Epoch {
    std::int64_t lease = 0;
    std::string name;
    std::string data_id;
    TimePoint granted;
    std::size_t markers_made = 0;
    std::vector<Marker> free;
  };

  std::shared_ptr<Epoch> current_epoch(const Call& call);
  bool is_fresh() const REQUIRES(mutex_);
  void forget(const std::shared_ptr<Epoch>& epoch);
  bool lease_lives(std::int64_t lease, const Call& call);
  Marker take_marker(Epoch& epoch);
  void give_back(Epoch& epoch, Marker marker);
  // The data or the lease behind the markers vanished.
  void markers_lost(const std::shared_ptr<Epoch>& epoch, bool resent, const Call& call);

  Gateway& gateway_;
  Mutex mutex_;
  std::shared_ptr<Epoch> epoch_ GUARDED_BY(mutex_);
};

// Takes a lease with an id of our choice, so that asking twice does no harm. Returns the time to
// live in seconds, which etcd may have made longer.
std::int64_t grant_lease(Gateway& gateway, std::int64_t id, std::int64_t seconds, const Call& call);
// Also if there is no such lease any more.
void revoke_lease(Gateway& gateway, std::int64_t id, const Call& call);

}  // namespace tensorbus::store::etcd
