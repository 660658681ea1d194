// The tensor bus for C++ programs: tensors between ranks that lay them out differently.
//
// Every rank makes a Bus, which runs its agent on a thread. Ranks gather under two names of a pair;
// each registers its tensors; then one side sends and the other receives, round after round. See
// examples/bus.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorbus/deadline.h"
#include "tensorbus/dtype.h"
#include "tensorbus/layout.h"
#include "tensorbus/status.h"
#include "tensorbus/store.h"

#pragma GCC visibility push(default)

namespace tensorbus {

namespace fabric {
class Pool;
}

struct BusOptions {
  // Unique among the agents of the namespace. Nothing: one that is free, from 1,000 on; not for
  // sides whose ranks fill a mesh in ascending order.
  std::optional<Rank> rank{};
  std::string space = "default";
  std::string bind{};  // an address of this machine that other hosts reach; empty: this host only
  std::uint16_t first_port = 0;  // that it may listen on there; both 0: as TENSORBUS_PORTS says
  std::uint16_t last_port = 0;
  std::shared_ptr<fabric::Pool> pool{};  // tensors in it are mapped by readers; null: its own
  Deadline deadline = Deadline::after(std::chrono::seconds(30));  // to reach the store
  // Threads that copy for this rank, 1 to 8, the caller's included. Nothing: as
  // TENSORBUS_COPY_THREADS says, else the cores that this process may use, divided by the agents of
  // this host.
  std::optional<std::int64_t> copy_threads{};
  // HOST:PORT of a page with the metrics of this process, port 0 for a free one. Nothing: as
  // TENSORBUS_METRICS says.
  std::optional<std::string> metrics{};
};

// Where the calling rank stands in a pair: on the side `local`, with `world_size` ranks.
struct PairSide {
  std::string pair;
  std::string local;
  std::string remote;  // whom it waits for
  std::int64_t world_size = 1;
  // The ranks of the side, in ascending order, fill the mesh row by row, unless each says where it
  // stands. No mesh on either side: ranks face each other one to one.
  Shape mesh{};
  std::vector<Placement> placements{};
  std::optional<std::vector<std::int64_t>> coordinate{};
};

// A local tensor. The memory is lent from registration to the end of the batch.
struct BusTensor {
  void* data = nullptr;
  Dtype dtype = Dtype::float32;
  Shape shape{};
  Shape strides{};  // in elements; empty: contiguous
  std::string pair{};
  std::string name{};                   // all tensors of a pair have one, or none
  std::optional<Shape> global_shape{};  // else it follows from the shapes of all ranks
};

// How a send ended at one reader. `read`: it needs our memory no more.
enum class ReadBy : std::uint8_t { read, failed, lost };

struct TransferResult {
  std::int64_t round = 0;
  std::map<Rank, ReadBy> readers;  // of a send
};

// A transfer that failed, with what is known of it.
class TransferError : public Error {
 public:
  TransferError(const Status& status, TransferResult result)
      : Error(status), result_(std::move(result)) {}
  const TransferResult& result() const noexcept { return result_; }

 private:
  TransferResult result_;
};

// A registered batch. Moving it keeps the batch; dropping it closes it.
class BusBatch {
 public:
  ~BusBatch();
  BusBatch(BusBatch&&) noexcept;
  BusBatch& operator=(BusBatch&&) noexcept;

  // Returns when every reader is done with the tensors, which may change again then. Throws
  // TransferError when one is not; then, too, the memory is the caller's again.
  TransferResult send(Deadline deadline);
  // Returns when every byte is in place.
  TransferResult recv(Deadline deadline);
  // Whether a round is there that this rank has not read yet.
  bool published();
  void close(Deadline deadline);

 private:
  friend class Bus;
  struct Impl;
  explicit BusBatch(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class Link;          // link.h
struct LinkOptions;  // link.h

// Thread safe. Outlives its batches; links keep it alive.
class Bus {
 public:
  // A URL, see store.h.
  Bus(const std::string& store, const BusOptions& options);
  Bus(std::shared_ptr<Store> store, const BusOptions& options);
  ~Bus();
  Bus(const Bus&) = delete;
  Bus& operator=(const Bus&) = delete;

  Rank rank() const;

  // Memory that ranks of this host map instead of copying it twice.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // Returns when both sides are complete.
  void init_pair(const PairSide& side, Deadline deadline);
  // Returns when all ranks of both sides have registered tensors that match, and have met. `role`:
  // the local name that is meant, where this rank has both of a pair.
  BusBatch register_tensors(const std::string& batch, std::span<const BusTensor> tensors,
                            Deadline deadline,
                            const std::optional<std::string>& role = std::nullopt);

  // A way for model weights between the ranks called `local` and those called `remote`, whom a
  // publisher need not name. The link connects at the first call.
  Link link(const std::string& local, const std::optional<std::string>& remote = std::nullopt);
  Link link(const std::string& local, const std::optional<std::string>& remote,
            const LinkOptions& options);

 private:
  friend class BusBatch;
  friend class Link;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace tensorbus

#pragma GCC visibility pop
