// The reader's half: operations on the regions and words of peers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fabric/core/reads.h"
#include "fabric/read/staging.h"
#include "fabric/read/stream_cache.h"
#include "fabric/ucx/connection.h"

namespace tensorbus::fabric::ucx {

// A region of a peer. Everything is copied by the owner and sent.
class AttachedRegion final : public RemoteRegion {
 public:
  AttachedRegion(std::uint64_t stream, std::uint64_t number, Forms forms)
      : stream_(stream), number_(number), forms_(std::move(forms)) {}
  std::uint64_t number() const noexcept override { return number_; }
  const Forms& forms() const noexcept override { return forms_; }
  std::string_view path() const noexcept override { return "network"; }
  std::string_view path_to_device() const noexcept override { return "network staged"; }
  // The connection that the region was attached through.
  std::uint64_t stream() const noexcept { return stream_; }

 private:
  std::uint64_t stream_;
  std::uint64_t number_;
  Forms forms_;
};

// A read bound to its targets and cut for messages.
class CutRead {
 public:
  // Checks the read.
  explicit CutRead(const Read& read);
  bool fits(const Read& read) const { return forms_.fits(read); }
  const plan::Program& program() const noexcept { return program_; }

 private:
  ReadForms forms_;
  plan::Program program_;
};

// Every operation and every leg of a read (one per source) has a number that is never used again:
// what comes for an older number is dropped. The number is the attempt number of protocol.md.
class Client {
 public:
  // What a source may send before it hears from this reader, per read and source. The copiers are
  // borrowed.
  Client(std::uint64_t window, device::Copiers& copiers) : window_(window), copiers_(copiers) {}

  void attach(std::shared_ptr<Connection> peer, std::uint64_t region, OpId id, Deadline deadline);
  void read(Read read, OpId id, Deadline deadline);
  void swap(const Swap& swap, OpId id, Deadline deadline);
  void cancel(OpId id);
  std::int64_t bytes_read(OpId id) const noexcept;

  // Takes answers. Error if an answer is broken; the connection is lost then.
  void forms(Connection& peer, const Frame& frame, std::string_view body);
  void failed(Connection& peer, const Frame& frame, std::string_view body);
  void fragment(Connection& peer, const Frame& frame, std::span<const std::byte> body);
  void served(Connection& peer, const Frame& frame, std::string_view body);
  void swapped(Connection& peer, const Frame& frame, std::string_view body);

  // Reads into devices go on as far as those let them.
  void look_at_devices();
  bool waits_for_device() const noexcept { return !on_device_.empty(); }
  // Operations whose deadline has passed end.
  void expire(TimePoint now);
  TimePoint next_deadline() const noexcept;
  // The connection is over, and its operations with it.
  void forget(const Connection& peer, const Status& reason);

  // Completions since the last call.
  std::vector<Completion> take_completions() { return std::exchange(completions_, {}); }
  bool has_completions() const noexcept { return !completions_.empty(); }

 private:
  struct Leg {
    std::shared_ptr<Connection> peer;
    std::uint64_t number = 0;
    std::size_t next = 0;                     // fragment expected
    std::int64_t uncredited = 0;              // consumed, not yet given back
    bool served = false;                      // the owner says that all was whole
    std::deque<std::vector<std::byte>> held;  // fragments that wait for the group's others
  };
  struct Operation {
    OpId id{};
    Deadline deadline = Deadline::never();
    std::string what;  // for messages: "read from rank 3 (pid 4711)"
    std::vector<Leg> legs;
    // attach
    std::uint64_t region = 0;
    std::string encoded_forms;
    // read
    Read read;
    std::shared_ptr<const CutRead> cut;
    std::optional<TargetSide> targets;
    bool bypass_caches = false;
    std::size_t reduced = 0;        // fragments, or scattered to where a device stores them
    std::int64_t bytes_stored = 0;  // in the targets
    bool on_device = false;
    // How the read has ended, while a device is still at its targets.
    std::optional<Status> ended{};
  };
  struct LegKey {
    OpId id{};
    std::size_t leg = 0;
  };

  Operation& start(OpId id, Deadline deadline, std::string what);
  void add_leg(Operation& operation, std::shared_ptr<Connection> peer);
  // The operation and leg that a frame answers; null if the operation is over. The client loses a
  // peer that answers what it was not asked.
  std::pair<Operation*, Leg*> find(Connection& peer, std::uint64_t number);
  // Error if the lender of the targets, or their device, cannot be written to.
  void reduce_what_is_complete(Operation& operation);
  void go_on_or_fail(Operation& operation);
  void consumed(Operation& operation, Leg& leg, std::int64_t bytes);
  void complete_if_read(Operation& operation);
  void complete(Operation& operation, Completion completion);
  void fail(Operation& operation, const Status& reason);

  std::uint64_t window_;
  device::Copiers& copiers_;
  std::set<OpId> on_device_;  // reads that devices are at
  StreamCache<CutRead> cut_reads_;
  std::uint64_t last_number_ = 0;
  std::map<OpId, Operation> operations_;
  std::map<std::uint64_t, LegKey> legs_;
  std::set<std::pair<TimePoint, OpId>> deadlines_;
  std::vector<Completion> completions_;
};

}  // namespace tensorbus::fabric::ucx
