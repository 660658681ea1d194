// What the bindings of the bus stand on: a client with its agent, transfers, and what waits for an
// agent to let go of memory.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "bindings.h"
#include "bus/channel/loan.h"
#include "bus/client/client.h"
#include "bus/host/embedded.h"
#include "bus/socket/connection.h"
#include "copy/crew.h"
#include "copy/thread_count.h"
#include "gil.h"
#include "os/io/poll.h"
#include "os/process/fork.h"
#include "pooled.h"
#include "store_arguments.h"

namespace tensorbus::python {

// What belongs to the process that made it: a forked child neither uses nor ends it. Ends it
// without the interpreter, because its threads may need that to end.
template <typename T>
class Owned {
 public:
  explicit Owned(std::unique_ptr<T> value) : value_(std::move(value)) {}
  Owned() = default;
  Owned(Owned&&) = default;
  Owned& operator=(Owned&&) = default;
  ~Owned() {
    if (value_ == nullptr) return;
    const WithoutGilIfHeld without_gil;
    if (here()) {
      value_.reset();
    } else {
      static_cast<void>(value_.release());
    }
  }

  bool here() const { return os::fork_generation() == made_in_; }
  void reset() { value_.reset(); }
  explicit operator bool() const { return value_ != nullptr; }
  // Error(failed) in a child.
  T& operator*() const {
    os::check_not_forked(made_in_, "client or agent");
    return *value_;
  }
  T* operator->() const { return &**this; }

 private:
  std::unique_ptr<T> value_;
  unsigned made_in_ = os::fork_generation();
};

// A transfer with a descriptor that becomes readable when it is over.
class BusTransfer {
 public:
  explicit BusTransfer(std::shared_ptr<bus::TransferState> state)
      : state_(std::make_unique<std::shared_ptr<bus::TransferState>>(std::move(state))) {}

  bus::TransferState& state() const { return **state_; }
  int fd() {
    if (event_ == nullptr) {
      event_ = std::make_shared<os::EventFd>();
      const WithoutGil without_gil;
      state().on_done([event = event_] { event->signal(); });
    }
    return event_->get();
  }

 private:
  Owned<std::shared_ptr<bus::TransferState>> state_;
  std::shared_ptr<os::EventFd> event_;
};

// Waiting for an agent to let go of memory.
class BusParting {
 public:
  explicit BusParting(std::function<bool()> done) : done_(std::move(done)) {}
  bool done() const { return done_(); }

 private:
  std::function<bool()> done_;
};

// A client and, if it runs in this process, its agent.
using Ports = std::pair<std::uint16_t, std::uint16_t>;  // the first and the last

class BusClient {
 public:
  using CopyThreads = std::optional<std::int64_t>;

  BusClient(std::string queue_path, std::string state_path, std::string space, Rank rank,
            Timeout timeout, CopyThreads copy_threads)
      : rank_(rank) {
    const auto asked_for = copy::threads_asked_for(copy_threads);
    bus::SocketConnectionOptions options;
    options.queue_path = std::move(queue_path);
    options.state_path = std::move(state_path);
    options.space = std::move(space);
    options.rank = rank;
    options.offer = [](const bus::Loan& loan) {
      const std::shared_ptr<fabric::Pool> pool = process_pool();
      return bus::offer(loan, *pool, *pool);
    };
    client_ = Owned(std::make_unique<bus::Client>(
        bus::connect_to_agent(std::move(options), deadline(timeout)), process_pool(),
        asked_for ? std::make_shared<copy::Crew>(*asked_for) : nullptr));
  }

  BusClient(std::shared_ptr<Store> store, std::optional<Rank> rank, std::string space,
            std::string bind, Ports ports, Timeout timeout, CopyThreads copy_threads,
            std::optional<std::string> metrics)
      : rank_(0) {
    bus::EmbeddedOptions options;
    options.rank = rank;
    options.space = std::move(space);
    options.pool = process_pool();
    options.bind = std::move(bind);
    options.ports = {ports.first, ports.second};
    options.copy_threads = copy_threads;
    options.metrics = std::move(metrics);
    embedded_ = Owned(
        std::make_unique<bus::Embedded>(std::move(store), std::move(options), deadline(timeout)));
    client_ = Owned(
        std::make_unique<bus::Client>(embedded_->connect(), embedded_->pool(), embedded_->crew()));
    rank_ = embedded_->rank();
  }

  Rank rank() const noexcept { return rank_; }
  void init_pair(const bus::InitPair& pair, bool blocking, Deadline deadline) {
    if (embedded_) embedded_->check(pair);
    client_->init_pair(pair, blocking, deadline);
  }

  bus::Client* operator->() const { return &*client_; }
  // Error(failed) once it is abandoned.
  bus::Client& core() const {
    if (!client_) throw Error(Code::failed, "this client is closed");
    return *client_;
  }

  // An embedded agent goes with its client.
  bool close(Timeout timeout) {
    if (!client_.here()) return true;
    const bool released = client_->close(deadline(timeout));
    if (!embedded_) return released;
    embedded_.reset();
    return true;
  }

  // The same on a thread of its own. The memory that is lent must stay until the result is done:
  // for ever, if the agent does not let go.
  BusParting abandon(Timeout timeout) {
    if (!client_.here()) return BusParting([] { return true; });
    auto over = std::make_shared<std::atomic<bool>>(false);
    auto self = std::make_shared<BusClient>(std::move(*this));
    std::thread([self, over, timeout] { *over = self->close(timeout); }).detach();
    return BusParting([over] { return over->load(); });
  }

 private:
  Owned<bus::Embedded> embedded_;
  Owned<bus::Client> client_;
  Rank rank_;
};

inline bus::Direction direction(bool send) {
  return send ? bus::Direction::send : bus::Direction::recv;
}
std::optional<bus::Verify> parse_verify(const std::optional<std::string>& verify);
// Of a send: how it ended at each rank.
nb::dict readers_of(const std::map<Rank, bus::ReaderOutcome>& readers);

}  // namespace tensorbus::python
