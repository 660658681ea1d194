// What an endpoint's loop thread owns: the fabrics, what is exposed, whom it reads from.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "endpoint/alias_ledger.h"
#include "endpoint/read_operation.h"
#include "fabric/core/descriptor.h"
#include "fabric/core/fabric.h"
#include "fabric/route/select.h"
#include "observe/counter.h"

namespace tensorbus::fabric {

// Counted by the loop, read by any thread.
struct EndpointCounters {
  struct Path {
    const char* name;
    observe::Counter reads;
    observe::Counter bytes;
  };
  Path paths[5] = {{"alias", {}, {}},
                   {"mapped", {}, {}},
                   {"process_vm_readv", {}, {}},
                   {"packed", {}, {}},
                   {"network", {}, {}}};
  observe::Counter failed_reads;
  observe::Counter exposures;
  observe::Counter connections;
};

// A read that somebody asked for. Made by the caller's thread, then the loop's.
struct PendingRead {
  Descriptor descriptor;
  std::string secret;
  Forms target_forms;               // what the views borrow
  std::vector<TensorView> targets;  // memory of the caller's
  std::shared_ptr<const plan::Stream> stream;
  std::uint64_t bytes = 0;
  // Of frozen tensors, to be aliased: called, on any thread, when the alias is gone.
  std::function<void()> let_go;
  // Where they cannot be: makes targets to copy them to.
  std::function<void(PendingRead&)> copy_instead;
  Deadline deadline = Deadline::never();
  std::shared_ptr<ReadOperation::State> state;
};

class EndpointCore {
 public:
  // `fabrics` in the order of preference; all have one identity.
  EndpointCore(std::vector<std::unique_ptr<Fabric>> fabrics, Reach reach,
               std::string descriptor_secret, EndpointCounters& counters);
  // Reads that run end as cancelled.
  ~EndpointCore();

  std::string expose(std::span<const TensorView> tensors);
  // `memory` keeps the tensors' from being used again.
  std::string expose_frozen(std::span<const TensorView> tensors,
                            std::vector<std::shared_ptr<void>> memory);
  bool release(const Descriptor& descriptor);
  void start(OpId id, PendingRead read);
  void cancel(OpId id);
  // Tells the owner that an alias of a region is gone.
  void let_go(const Id16& owner, std::uint64_t region);

  // True if something happened.
  bool poll();
  // As Fabric's, for all of them.
  bool arm();
  TimePoint wake_at() const noexcept;
  std::vector<int> descriptors() const;

 private:
  // A process that we read from, and the fabric that serves it.
  struct Link {
    Identity owner;
    std::string secret;
    std::vector<Verdict> verdicts;
    std::size_t current = 0;  // the verdict that is tried or serves
    Fabric* fabric = nullptr;
    std::shared_ptr<Peer> peer;
    bool up = false;
    std::map<std::uint64_t, std::shared_ptr<const RemoteRegion>> attached;
  };
  using LinkPtr = std::shared_ptr<Link>;
  struct Running : PendingRead {
    enum class Stage { connecting, attaching, holding, reading } stage = Stage::connecting;
    LinkPtr link;
    std::shared_ptr<const RemoteRegion> region;

    // Not the fabric's: we ourselves see to its end.
    bool waits_here() const { return stage == Stage::connecting || stage == Stage::holding; }
  };

  std::string expose(std::span<const TensorView> tensors, bool frozen);
  LinkPtr link_to(const PendingRead& read);
  void try_next(const LinkPtr& link, Status refusal);
  void proceed(OpId id, Running& read);
  void begin_reading(OpId id, Running& read);
  static void give_up_aliasing(Running& read);
  void on_held(OpId id, Running& read);
  void finish(OpId id, Status status);
  void on(Fabric& fabric, const Message& message);
  void on(const Completion& completion);
  void on(const PeerUp& up);
  void on(const PeerLost& lost);
  LinkPtr link_of(const Peer& peer) const;
  std::vector<OpId> waiting_for(const LinkPtr& link) const;
  void expire_waiting();
  void send(Fabric& fabric, const std::shared_ptr<Peer>& peer, const Holding& message);
  void send_what_waits();
  Fabric* fabric_of(std::string_view kind) const;

  const Reach reach_;
  const std::string descriptor_secret_;
  EndpointCounters& counters_;
  std::vector<std::unique_ptr<Fabric>> fabrics_;
  // By the number of the region in the first fabric.
  std::map<std::uint64_t, std::vector<std::unique_ptr<Region>>> exposures_;
  std::map<Id16, LinkPtr> links_;  // by the owner's id
  std::map<OpId, Running> reads_;
  AliasLedger ledger_;
  struct Outgoing {
    Fabric* fabric;
    std::shared_ptr<Peer> peer;
    std::string bytes;
  };
  std::vector<Outgoing> outbox_;  // that a peer's ring had no room for
};

}  // namespace tensorbus::fabric
