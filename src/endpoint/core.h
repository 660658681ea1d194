// What an endpoint's loop thread owns: the station, what is exposed, whom it reads from.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "endpoint/alias_ledger.h"
#include "endpoint/messages.h"
#include "endpoint/read_operation.h"
#include "fabric/core/descriptor.h"
#include "fabric/route/station.h"
#include "observe/counter.h"
#include "observe/recorder.h"

namespace tensorbus::endpoint {

// Counted by the loop, read by any thread.
struct Counters {
  explicit Counters(observe::Labels labels) : recorder(std::move(labels)) {}

  struct Path {
    const char* name;
    observe::Counter reads;
    observe::Counter bytes;
  };
  Path paths[8] = {
      {"alias", {}, {}},          {"mapped", {}, {}},       {"process_vm_readv", {}, {}},
      {"packed", {}, {}},         {"network", {}, {}},      {"staged", {}, {}},
      {"network staged", {}, {}}, {"device window", {}, {}}};
  observe::Counter failed_reads;
  observe::Counter exposures;
  observe::Counter connections;
  observe::Recorder recorder;  // the same for pages and timelines
};

// A read that somebody asked for. The caller's thread makes the read, then the loop owns it.
struct PendingRead {
  fabric::Descriptor descriptor;
  std::string secret;
  fabric::Forms target_forms;                           // what the views borrow
  std::vector<TensorView> targets;                      // memory of the caller's
  std::optional<std::vector<fabric::TensorBox>> boxes;  // nothing: the whole tensors
  std::shared_ptr<const plan::Stream> stream;
  std::uint64_t bytes = 0;
  // For frozen tensors that are to be aliased: called, on any thread, when the alias is gone.
  std::function<void()> let_go;
  // For frozen tensors that cannot be aliased: makes targets to copy them to.
  std::function<void(PendingRead&)> copy_instead;
  Deadline deadline = Deadline::never();
  TimePoint asked_at{};
  std::shared_ptr<ReadOperation::State> state;
};

class Core {
 public:
  Core(std::unique_ptr<fabric::Station> station, std::string descriptor_secret, Counters& counters);
  // Reads that run end as cancelled.
  ~Core();

  std::string expose(std::span<const TensorView> tensors);
  // `memory` keeps the memory of the tensors from being used again.
  std::string expose_frozen(std::span<const TensorView> tensors,
                            std::vector<std::shared_ptr<void>> memory);
  bool release(const fabric::Descriptor& descriptor);
  void start(fabric::OpId id, PendingRead read);
  void cancel(fabric::OpId id);
  // Tells the owner that an alias of a region is gone.
  void let_go(const Id16& owner, std::uint64_t region);

  // True if something happened.
  bool poll();
  // As the station's.
  bool arm();
  TimePoint wake_at() const noexcept;
  std::vector<int> descriptors() const;

 private:
  // A process that this one reads from, and how it is reached.
  struct Owner {
    fabric::Identity identity;
    std::string secret;
    fabric::Route route;
    std::shared_ptr<fabric::Peer> peer;
    bool up = false;
    // By the number that descriptors give the region.
    std::map<std::uint64_t, std::shared_ptr<const fabric::RemoteRegion>> attached;
  };
  using OwnerPtr = std::shared_ptr<Owner>;
  struct Running : PendingRead {
    enum class Stage { connecting, attaching, asking, holding, reading } stage = Stage::connecting;
    OwnerPtr owner;
    std::shared_ptr<const fabric::RemoteRegion> region;
    TimePoint began_at{};             // to read
    std::uint64_t stream_number = 0;  // by which the owner packs the boxes

    // The number as the descriptor has it: a station numbers its regions for all transports.
    std::uint64_t number() const { return descriptor.ways.front().region; }
    // The read is not the station's yet: the core itself sees to its end.
    bool waits_here() const {
      return stage == Stage::connecting || stage == Stage::asking || stage == Stage::holding;
    }
    // The owner packs what this process cannot see, and must know which boxes.
    bool must_ask() const {
      return boxes && stream_number == 0 && region->path() != "mapped" &&
             region->path() != "process_vm_readv";
    }
  };

  std::string expose(std::span<const TensorView> tensors, bool frozen);
  OwnerPtr owner_of(const PendingRead& read);
  void try_next(const OwnerPtr& owner, Status refusal);
  void proceed(fabric::OpId id, Running& read);
  void begin_reading(fabric::OpId id, Running& read);
  static void give_up_aliasing(Running& read);
  void on_held(fabric::OpId id, Running& read);
  void taken_back(fabric::OpId id, const Running& read);
  void finish(fabric::OpId id, Status status);
  void record(const Running& read, Code code, const std::string& path);
  void on(const fabric::Message& message);
  void on(const std::shared_ptr<fabric::Peer>& from, const AliasMessage& message);
  void on(const std::shared_ptr<fabric::Peer>& from, const PartsWanted& wanted);
  void on(const std::shared_ptr<fabric::Peer>& from, const PartsServed& served);
  void on(const fabric::Completion& completion);
  void on(const fabric::PeerUp& up);
  void on(const fabric::PeerLost& lost);
  OwnerPtr owner_of(const fabric::Peer& peer) const;
  std::vector<fabric::OpId> waiting_for(const OwnerPtr& owner) const;
  void expire_waiting();
  void send(const std::shared_ptr<fabric::Peer>& peer, const EndpointMessage& message);
  void send_what_waits();
  void call(Owner& owner);
  void forget(const Owner& owner);

  const std::string descriptor_secret_;
  Counters& counters_;
  std::unique_ptr<fabric::Station> station_;
  struct Exposure {
    std::unique_ptr<fabric::Region> region;
    std::map<std::string, std::uint64_t> streams;  // of boxes, by their encoded list
  };
  PartsServed serve(const PartsWanted& wanted);

  std::map<std::uint64_t, Exposure> exposures_;  // by number
  std::map<Id16, OwnerPtr> owners_;              // by the owner's id
  std::map<fabric::OpId, Running> reads_;
  AliasLedger ledger_;
  struct Outgoing {
    std::shared_ptr<fabric::Peer> peer;
    std::string bytes;
  };
  std::vector<Outgoing> outbox_;  // that a peer's ring had no room for
};

}  // namespace tensorbus::endpoint
