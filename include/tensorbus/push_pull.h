// Push-pull: workers push tensors to servers and pull their answers, in microseconds on one host.
//
// A job has groups of workers and groups of servers, each of `group_size` instances, and one
// scheduler that lets them find each other. Instance i of a worker group talks to instance i (its
// lane) of every server group. Every push goes whole to every server; pull tensors are divided
// among the servers by position. docs/push_pull.md has the life of a request.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensorbus/deadline.h"
#include "tensorbus/status.h"
#include "tensorbus/tensor.h"

#pragma GCC visibility push(default)

namespace tensorbus::fabric {
class Pool;
}

namespace tensorbus::push_pull {

enum class Role : std::uint8_t { scheduler, server, worker };
std::string_view to_string(Role role) noexcept;

// What all nodes of a job are told alike.
struct Job {
  int workers = 1;  // groups
  int servers = 1;  // groups
  int group_size = 1;
  // Where the scheduler serves: an address of its machine, and a port.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
};

// What carries the bytes between a worker and a server. Automatic: shared memory on one host, the
// network else.
enum class Transport : std::uint8_t { automatic, shared_memory, network };

struct NodeOptions {
  Job job;
  int rank = 0;      // among all instances of the role: group * group_size + lane
  std::string bind;  // our address on the network; empty: the one that leads to the scheduler
  std::uint16_t first_port = 0;  // that it may listen on there; both 0: as TENSORBUS_PORTS says
  std::uint16_t last_port = 0;
  Transport transport = Transport::automatic;
  // Until the whole job is present.
  Deadline deadline = Deadline::after(std::chrono::seconds(300));
  // Tensors in its memory are written straight by peers of this host; null: its own.
  std::shared_ptr<fabric::Pool> pool;
  // Of the scheduler's store. Default: TENSORBUS_TOKEN.
  std::optional<std::string> token;
  // How long a blocked call spins before it sleeps. Default: by the number of cores, and by whether
  // it pays.
  std::optional<Duration> spin;
  // What a worker may have under way at one server before push_pull() waits.
  int most_requests = 64;
  std::size_t most_bytes = std::size_t{256} << 20;
};

// What DMLC_* and STEPMESH_* say, and TENSORBUS_INIT_TIMEOUT. Error(invalid_argument) that names
// the variable that is missing or wrong.
struct Environment {
  Role role{};
  NodeOptions options;
  Duration timeout{};  // of init, barriers and stop
};
Environment from_environment();

// Who stands before a barrier.
struct Party {
  bool servers = true;
  bool workers = true;
  bool all_lanes = true;  // false: only those of the caller's lane
};

class Scheduler {
 public:
  // Serves at job.host:job.port (0 picks a port) and returns; wait_for_all() waits for the others.
  explicit Scheduler(const NodeOptions& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  std::uint16_t port() const noexcept;
  // Error(timeout) that says who is missing.
  void wait_for_all(Deadline deadline);
  // Until every other node has stopped or died.
  void stop(Deadline deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Names a request, at the worker that made it or at the server that got it.
enum class Handler : std::uint64_t {};

struct Item {
  std::int64_t key = 0;
  TensorView tensor;
};

// A request that is made once and sent often, with whatever its push tensors hold then. Copies are
// the same request.
class PreparedRequest {
 public:
  PreparedRequest() = default;  // of nobody

 private:
  friend class Worker;
  struct Content;
  std::shared_ptr<Content> content_;
};

// When things happened to a request, in ns of the steady clock: at the worker handed over and sent,
// at the server received and given to its code; then the answer: at the server handed over and
// sent, at the worker received and given back.
using Trace = std::array<std::int64_t, 8>;

struct WorkerCounts {
  std::uint64_t answers_straight = 0;  // written by the server into the pull tensor itself
  std::uint64_t answers_copied = 0;    // out of a slot
  std::uint64_t slots = 0;             // that servers made for our pushes
  std::uint64_t repeated = 0;          // sent as requests that the servers knew
  std::uint64_t requests = 0;          // not yet waited for
};

// All calls are thread safe. A thread that waits polls the fabrics itself; a thread of our own does
// when nobody waits.
class Worker {
 public:
  explicit Worker(const NodeOptions& options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Pushes may be changed when it returns. Pull tensors stay borrowed until wait() returns; if that
  // says that a server is still writing, `keep` is held until it no longer is. Waits while too much
  // is under way. Error: invalid_argument, peer_lost, timeout, queue_full.
  Handler push_pull(std::span<const Item> pushes, std::span<const Item> pulls, Deadline deadline,
                    std::shared_ptr<const void> keep = {});
  // Checks the request, and asks nothing of the servers. The tensors are borrowed, keys and forms
  // copied; `keep` is held as long as the request is. Error(invalid_argument).
  PreparedRequest prepare(std::span<const Item> pushes, std::span<const Item> pulls,
                          std::shared_ptr<const void> keep = {});
  // The same for a request that this worker has prepared, also before the last one was answered.
  Handler push_pull(const PreparedRequest& prepared, Deadline deadline);
  // Until all servers have answered. Error: timeout naming those who have not (the request is
  // cancelled then, nothing is written any more), peer_lost, or what a server said.
  void wait(Handler handler, Deadline deadline);
  // One per push and one per pull slot of a server, the first of them `handler`; alone after
  // wait().
  std::vector<Handler> handlers(Handler handler) const;
  // After wait(), for the last thousand requests. Without a server: the one that took longest.
  Trace trace(Handler handler, std::optional<int> server = {}) const;

  // Memory of the pool, which comes back when its last holder is gone.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);
  void barrier(const Party& party, Deadline deadline);
  // Until every node has stopped or died. The object is of no use afterwards.
  void stop(Deadline deadline);
  WorkerCounts counts() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct Received {
  std::int64_t key = 0;
  TensorView tensor;
  std::shared_ptr<const void> memory;  // what the tensor lies in
};

// Valid until it is answered; the memory of its tensors as long as it is held, but with other
// content then.
struct Request {
  Handler handler{};
  int worker = 0;  // group
  std::span<const Received> tensors;
};

struct ServerCounts {
  std::uint64_t pushes_straight = 0;  // into a registered buffer, by the worker itself
  std::uint64_t pushes_copied = 0;    // into one, out of a slot
  std::uint64_t slots = 0;            // that workers have of us
  std::uint64_t requests = 0;         // not yet answered
};

class Server {
 public:
  explicit Server(const NodeOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The next request of each worker group (or of these), by rank: waits for all. A worker that died
  // is an Error(peer_lost) once, and left out from then on. Replaces what `batch` holds.
  void get_batch(std::vector<Request>& batch, std::span<const int> workers, Deadline deadline);

  // As many tensors as the worker wants of this server, in order. Sizes that differ are an
  // Error(invalid_argument) here, and the worker's wait() fails with the same text. The tensors may
  // be changed when it returns. For a worker that died nothing happens.
  void respond(Handler handler, std::span<const TensorView> tensors);
  // Answers request i with the rows of `buffer` that tensors[i] would fill, one after the other.
  // `every_from_row_0`: each from the first row, as others do it.
  void respond_rows(const TensorView& buffer, std::span<const TensorView> tensors,
                    std::span<const Handler> handlers, bool every_from_row_0 = false);

  // Chunk i of the tensor (equal ranges of bytes) is where pushes of keys[i] from workers[i] land:
  // straight if it lies in the pool and the worker is on this host, else with one copy when they
  // are given out; in a slot of its own while an earlier request in that chunk is not answered.
  // Kept until the same places are registered again, or the end.
  void register_buffer(const TensorView& tensor, std::span<const int> workers,
                       std::span<const std::int64_t> keys, std::shared_ptr<const void> keep);

  // Memory of the pool, which comes back when its last holder is gone.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);
  void barrier(const Party& party, Deadline deadline);
  void stop(Deadline deadline);
  ServerCounts counts() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorbus::push_pull

#pragma GCC visibility pop
