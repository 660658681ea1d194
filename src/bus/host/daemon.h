// An agent with files and a socket, for workers in other processes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bus/files/lmdb_state.h"
#include "bus/round/step.h"
#include "bus/socket/channel.h"
#include "fabric/core/pool.h"
#include "fabric/core/port_range.h"
#include "fabric/route/station.h"
#include "os/io/poll.h"
#include "tensorbus/store.h"

namespace tensorbus::bus {

class Agent;
class Observation;
class Directory;

struct DaemonOptions {
  Rank rank = 0;  // unique among the agents of the namespace
  std::string space = "default";
  std::string queue_path;
  std::string state_path;
  std::string bind;           // the address on which other hosts reach it; empty: this host only
  fabric::PortRange ports{};  // that it listens on there
  std::function<void(Step)> reached{};  // told of every step of the protocol; may be empty
  Duration retain = Duration::max();    // how long what is published outlives its worker
  // Threads that copy for this rank; nothing: as TENSORBUS_COPY_THREADS says, else the cores are
  // shared among the agents of this host.
  std::optional<std::int64_t> copy_threads{};
  // HOST:PORT of a page with its metrics; nothing: as TENSORBUS_METRICS says.
  std::optional<std::string> metrics{};
};

// Owned by one thread; stop() from any.
class Daemon {
 public:
  // Takes the files (Error(failed) if they cannot be used), then meets the others in the store.
  Daemon(std::shared_ptr<Store> store, DaemonOptions options, Deadline deadline);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Serves until stop(). Throws Error(interrupted), or what has ended the agent; every command has
  // its outcome then, and close() is all that is left.
  void run();
  // Does what there is to do now.
  void step();
  void stop() noexcept { stop_.signal(); }
  // Ends every command as cancelled and withdraws what was published. With `destroy` the files go;
  // without, the next agent of this rank goes on from them.
  void close(bool destroy);

 private:
  const DaemonOptions options_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<fabric::Pool> pool_;
  std::unique_ptr<LmdbState> state_;
  std::unique_ptr<fabric::Station> station_;
  std::unique_ptr<SocketChannel> channel_;
  std::unique_ptr<Observation> observation_;
  std::unique_ptr<Directory> directory_;
  std::unique_ptr<Agent> agent_;
  os::EventFd stop_;
  bool failed_ = false;
};

}  // namespace tensorbus::bus
