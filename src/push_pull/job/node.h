// What workers and servers have in common: how a node comes into its job, is connected to all of
// the other role in its lane, and leaves.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/hot/ticker.h"
#include "fabric/core/pool.h"
#include "fabric/route/station.h"
#include "observe/recorder.h"
#include "observe/show/metrics_page.h"
#include "observe/show/trace_file.h"
#include "push_pull/job/loop.h"
#include "push_pull/job/membership.h"
#include "push_pull/job/partner.h"
#include "push_pull/job/records.h"
#include "tensorbus/push_pull.h"

namespace tensorbus::push_pull {

class Node : private Loop::Events {
 public:
  // Called with the lock held.
  class Client {
   public:
    virtual ~Client() = default;
    virtual void on_up(Partner& partner) = 0;
    // An Error ends the connection.
    virtual void on_message(Partner& partner, wire::Kind kind, wire::Body& message) = 0;
    virtual void on_lost(Partner& partner) = 0;
    virtual void on_turn() = 0;
  };

  // Returns when the node is connected to all. `client` is borrowed, and called from here on.
  Node(Role role, const NodeOptions& options, Client& client);
  ~Node() override;

  Loop& loop() noexcept { return *loop_; }
  fabric::Pool& pool() noexcept { return *pool_; }
  // Of the times of requests.
  const Ticker& ticker() const noexcept { return ticker_; }
  // Written to with the lock held.
  observe::Recorder& recorder() noexcept { return recorder_; }
  int rank() const noexcept { return self_.rank; }
  int rank_of(const Partner& partner) const { return other(partner.group()).rank; }

  void barrier(const Party& party, Deadline deadline) { membership_.barrier(party, deadline); }
  void stop(Deadline deadline);

 private:
  // What a member tells the others.
  void meet_the_others(const NodeOptions& options);
  NodeRecord record_of(const Member& member) const;
  bool needs_network(const NodeRecord& other) const;
  void connect_all(Deadline deadline);
  void open_network(const NodeOptions& options, const std::string& bind);
  std::vector<Seat> seats() const;
  void add_partner(const std::shared_ptr<fabric::Peer>& peer, int group);
  Member other(int group) const;
  Partner* partner_of(const fabric::Peer& peer);

  void on_up(const std::shared_ptr<fabric::Peer>& peer) override;
  void on_message(fabric::Peer& peer, std::string_view message) override;
  void on_lost(fabric::Peer& peer, const Status& reason) override;
  void on_turn() override;

  const Member self_;
  const Job job_;
  const Ticker ticker_;
  const std::shared_ptr<observe::HttpServer> page_;  // if TENSORBUS_METRICS says so
  const std::shared_ptr<observe::TraceFile> trace_;  // if TENSORBUS_TRACE says so
  observe::Recorder recorder_;
  Client& client_;
  std::shared_ptr<fabric::Pool> pool_;
  Membership membership_;
  NodeRecord record_;
  std::vector<NodeRecord> others_;  // of the other role in our lane, by group
  std::vector<std::unique_ptr<Partner>> partners_;
  std::map<const fabric::Peer*, Partner*> by_peer_;
  Partner* last_heard_ = nullptr;
  std::map<const fabric::Peer*, int> calling_;  // whom we connect to, until it is up
  std::optional<Status> failure_;               // of a connection that never came up
  std::unique_ptr<fabric::Station> station_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace tensorbus::push_pull
