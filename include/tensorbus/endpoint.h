// One-sided tensor transport between any two processes, without ranks or groups: one exposes
// tensors and hands the descriptor over by whatever means; whoever has it reads them, on one host
// through shared memory, between hosts through UCX.
//
// All calls are thread safe. In a forked child they throw.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorbus/deadline.h"
#include "tensorbus/layout.h"
#include "tensorbus/status.h"
#include "tensorbus/tensor.h"

#pragma GCC visibility push(default)

namespace tensorbus {

namespace fabric {
class Pool;
}

struct EndpointOptions {
  std::string name;                   // what the errors of others call it
  std::optional<std::string> secret;  // what readers must know; nothing: a random one
  // Descriptors carry the secret: whoever holds one may read. If not, the readers' endpoints have
  // the same one (from shared_secret(), say).
  bool secret_in_descriptors = true;
  // An address of this machine where peers on other hosts reach it. Empty: this host only.
  std::string bind;
  std::uint16_t first_port = 0;  // that it may listen on there; both 0: as TENSORBUS_PORTS says
  std::uint16_t last_port = 0;
  std::shared_ptr<fabric::Pool> pool;  // memory that peers of this host map; null: its own
  // HOST:PORT of a page with the metrics of this process, port 0 for a free one. Nothing: as
  // TENSORBUS_METRICS says.
  std::optional<std::string> metrics{};
};

// Frozen tensors of another process: by position, null if empty. What is written there stays in
// this process. The memory, their owner's or this process', is kept as long as this lives.
struct Received {
  std::vector<TensorForm> forms;
  std::vector<std::byte*> tensors;
  std::shared_ptr<void> memory;
};

// A read under way; copies name the same one.
class ReadOperation {
 public:
  bool done() const noexcept;
  // Returns when the targets hold the tensors. Error: timeout at the deadline (the read goes on),
  // or what ended the read: timeout at its own deadline, cancelled, withdrawn (the owner took the
  // tensors back), peer_lost, unreachable, denied, invalid_argument, failed.
  void wait(Deadline deadline) const;
  // Ends it, soon, as cancelled. The targets stay borrowed until it is done.
  void cancel() const noexcept;
  // Readable once it is done; valid while the operation is held.
  int fd() const;
  // How the bytes came: "mapped", "process_vm_readv", "packed", "network", from or to a device
  // "staged", "network staged" or "device window", or "alias" if they did not have to; empty before
  // that is known.
  std::string path() const;

  // Of a read_frozen() that ended well.
  std::shared_ptr<const Received> received() const;

  struct State;
  explicit ReadOperation(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

struct EndpointStats {
  struct Path {
    std::uint64_t reads = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::string, Path> paths;  // reads that ended well, by ReadOperation::path()
  std::uint64_t failed_reads = 0;
  std::uint64_t exposures = 0;    // now
  std::uint64_t connections = 0;  // now, to those that it reads from
};

class Endpoint {
 public:
  // Error: invalid_argument for settings, unsupported for a network without UCX, failed.
  explicit Endpoint(EndpointOptions options = {});
  // Closes it.
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // The tensors stay borrowed, and must not be written, until release(). Any strides; empty ones;
  // none at all. Of tensors on CUDA devices, here and as targets, streams have done with them: this
  // asks none. Not yet run on a GPU: see docs/device.md.
  std::string expose(std::span<const TensorView> tensors);
  // Tensors in the pool that are not written any more, ever: readers of this host may alias them.
  // The memory of the tensors comes back to the pool after release() and when the last alias is
  // gone, or the process that holds the alias. Error(invalid_argument) for tensors that are not in
  // the pool.
  std::string expose_frozen(std::span<const TensorView> tensors);
  // Takes the tensors back: reads that are not over fail as withdrawn, never with torn data. False
  // if the descriptor was released before.
  bool release(std::string_view descriptor);

  // What a descriptor describes. Error(invalid_argument) if it is none.
  struct Description {
    std::vector<TensorForm> tensors;
    bool frozen = false;
  };
  static Description describe(std::string_view descriptor);

  // One target per tensor, of its shape; another type is converted. The targets stay borrowed until
  // the operation is done. Error(invalid_argument) here for a bad descriptor or bad targets; then
  // nothing was started.
  ReadOperation read(std::string_view descriptor, std::span<const TensorView> into,
                     Deadline deadline = Deadline::never());

  // Boxes of the descriptor's tensors, one target for each, of the box's shape: only their bytes
  // move. Error(invalid_argument) also for more boxes than one read takes (some hundreds).
  struct Part {
    std::size_t tensor = 0;  // its position in the descriptor
    Shape start;             // first index in each dimension
  };
  ReadOperation read(std::string_view descriptor, std::span<const TensorView> into,
                     std::span<const Part> parts, Deadline deadline = Deadline::never());

  // Frozen tensors without a copy, or copied into the pool where that cannot be (from another host,
  // say); see ReadOperation::received().
  ReadOperation read_frozen(std::string_view descriptor, Deadline deadline = Deadline::never());

  // Memory that peers of this host map and that comes back when its last holder is gone.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  EndpointStats stats() const;

  // Exposed tensors are taken back, running reads end as cancelled; further calls fail.
  void close() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorbus

#pragma GCC visibility pop
