// An agent on a thread of its worker's process: no files, the in-process channel.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "bus/channel/channel.h"
#include "bus/channel/memory_channel.h"
#include "bus/directory/directory.h"
#include "bus/files/state.h"
#include "bus/round/step.h"
#include "fabric/core/pool.h"
#include "fabric/core/port_range.h"
#include "fabric/route/station.h"
#include "os/io/poll.h"
#include "tensorbus/store.h"

namespace tensorbus::bus {

class Agent;
class Observation;

struct EmbeddedOptions {
  // Unique among the agents of the namespace. Nothing: one that is free.
  std::optional<Rank> rank{};
  std::string space = "default";
  // The pool whose memory other processes map; null: the agent has one of its own.
  std::shared_ptr<fabric::Pool> pool;
  std::string bind;           // the address on which other hosts reach it; empty: this host only
  fabric::PortRange ports{};  // that it listens on there
  std::function<void(Step)> reached{};  // told of every step of the protocol; may be empty
  // Threads that copy for this rank; nothing: as TENSORBUS_COPY_THREADS says, else the cores are
  // shared among the agents of this host.
  std::optional<std::int64_t> copy_threads{};
  // HOST:PORT of a page with its metrics; nothing: as TENSORBUS_METRICS says.
  std::optional<std::string> metrics{};
  bool observed = true;  // false: nothing is recorded or shown, to measure what that costs
};

class Embedded {
 public:
  // Error(unsupported) if the store cannot serve a bus.
  Embedded(std::shared_ptr<Store> store, EmbeddedOptions options, Deadline deadline);
  // Ends every command as cancelled.
  ~Embedded();
  Embedded(const Embedded&) = delete;
  Embedded& operator=(const Embedded&) = delete;

  std::shared_ptr<Connection> connect() { return channel_->connect(); }
  Rank rank() const noexcept { return rank_; }
  // Error(invalid_argument) for a pair whose ranks stand in an order that a free rank would upset.
  void check(const InitPair& pair) const;
  // Where gates must lie, and tensors that others shall map.
  const std::shared_ptr<fabric::Pool>& pool() const noexcept { return pool_; }
  // The threads of this rank: the agent's, and its worker's.
  const std::shared_ptr<copy::Crew>& crew() const noexcept { return crew_; }

 private:
  void serve() noexcept;

  std::shared_ptr<Store> store_;
  bool rank_was_free_ = false;
  Rank rank_ = 0;
  std::shared_ptr<fabric::Pool> pool_;
  std::shared_ptr<copy::Crew> crew_;
  std::unique_ptr<fabric::Station> station_;
  std::unique_ptr<MemoryChannel> channel_;
  std::unique_ptr<Observation> observation_;
  std::unique_ptr<Directory> directory_;
  MemoryState state_;
  std::unique_ptr<Agent> agent_;
  os::EventFd stop_;
  std::thread thread_;
};

}  // namespace tensorbus::bus
