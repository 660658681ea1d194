// The bus: translation of bus/client/client.h and of agents. The package's client, agent and
// bootstrap modules put the seed's signatures on top.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "bindings.h"
#include "bus/channel/loan.h"
#include "bus/client/client.h"
#include "bus/files/lmdb_file.h"
#include "bus/files/paths.h"
#include "bus/host/daemon.h"
#include "bus/host/embedded.h"
#include "bus/socket/connection.h"
#include "copy/thread_count.h"
#include "gil.h"
#include "intake.h"
#include "os/io/poll.h"
#include "os/process/fork.h"
#include "os/process/process.h"
#include "pooled.h"
#include "store_arguments.h"

namespace tensorbus::python {
namespace {

using bus::TransferState;

nb::dict readers_of(const bus::Outcome& outcome) {
  nb::dict readers;
  for (const auto& [rank, how] : outcome.readers) {
    readers[nb::int_(rank)] = nb::str(to_string(how).data(), to_string(how).size());
  }
  return readers;
}

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
  explicit BusTransfer(std::shared_ptr<TransferState> state)
      : state_(std::make_unique<std::shared_ptr<TransferState>>(std::move(state))) {}

  TransferState& state() const { return **state_; }
  int fd() {
    if (event_ == nullptr) {
      event_ = std::make_shared<os::EventFd>();
      const WithoutGil without_gil;
      state().on_done([event = event_] { event->signal(); });
    }
    return event_->get();
  }

 private:
  Owned<std::shared_ptr<TransferState>> state_;
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
            std::string bind, Ports ports, Timeout timeout, CopyThreads copy_threads)
      : rank_(0) {
    bus::EmbeddedOptions options;
    options.rank = rank;
    options.space = std::move(space);
    options.pool = process_pool();
    options.bind = std::move(bind);
    options.ports = {ports.first, ports.second};
    options.copy_threads = copy_threads;
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

  // An embedded agent goes with its client.
  bool close(Timeout timeout) {
    if (!client_.here()) return true;
    const bool released = client_->close(deadline(timeout));
    if (!embedded_) return released;
    embedded_.reset();
    return true;
  }

  // The same on a thread of its own. Its memory must stay until the result is done: never, if the
  // agent does not let go.
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

using PairedName = std::pair<std::string, std::string>;  // pair, name
// Whether it sends, the last version, whether it takes a part of the names only, and how many a
// shelf keeps.
using Versioned = std::tuple<bool, std::int64_t, bool, std::optional<std::int64_t>>;
// A tensor's own: mesh, placements, coordinate, which mesh.
using OwnLayout = std::tuple<Shape, std::vector<Placement>, Shape, std::int64_t>;

TensorList take_in_batch(const nb::list& tensors, const std::vector<PairedName>& items) {
  return take_in(tensors, [&](std::size_t index) {
    const std::string pair = index < items.size() ? items[index].first : "";
    const std::string name = index < items.size() ? items[index].second : "";
    return (name.empty() ? "tensor " + std::to_string(index) : "tensor \"" + name + "\"") +
           " (pair \"" + pair + "\")";
  });
}

bus::Verify parse_verify(const std::string& verify) {
  if (verify == "off") return bus::Verify::off;
  if (verify == "sample") return bus::Verify::sample;
  if (verify == "full") return bus::Verify::full;
  throw Error(Code::invalid_argument,
              "verify is \"off\", \"sample\" or \"full\", not \"" + verify + "\"");
}

bus::Direction direction(bool send) { return send ? bus::Direction::send : bus::Direction::recv; }

std::uint64_t register_tensors(BusClient& client, const std::string& batch, const nb::list& tensors,
                               const std::vector<PairedName>& items,
                               const std::vector<std::optional<Shape>>& global_shapes,
                               std::optional<std::int64_t> chunk_bytes,
                               std::optional<std::string> role, const std::string& verify,
                               const std::vector<std::optional<OwnLayout>>& layouts,
                               const std::vector<std::optional<Shape>>& starts,
                               std::vector<std::string> pairs,
                               const std::optional<Versioned>& versioned, Timeout timeout,
                               const std::optional<std::string>& shelf_dtype) {
  const TensorList taken = take_in_batch(tensors, items);
  std::vector<bus::BatchTensor> batch_tensors;
  batch_tensors.reserve(taken.size());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    batch_tensors.push_back({taken[i], items.at(i).first, items.at(i).second, global_shapes.at(i)});
    if (i < starts.size()) batch_tensors.back().start = starts[i];
    if (i >= layouts.size() || !layouts[i]) continue;
    const auto& [mesh, placements, coordinate, id] = *layouts[i];
    batch_tensors.back().layout = bus::SideLayout{mesh, placements, coordinate, id};
  }
  bus::RegisterOptions options;
  options.chunk_bytes = chunk_bytes;
  options.role = std::move(role);
  options.verify = parse_verify(verify);
  options.pairs = std::move(pairs);
  if (versioned) {
    const auto& [send, last, subset, keep] = *versioned;
    options.versioned = bus::Versioned{direction(send), last, subset, keep};
  }
  if (shelf_dtype) options.shelf_dtype = parse_dtype(*shelf_dtype);
  const WithoutGil without_gil;
  return client->register_tensors(batch, batch_tensors, options, deadline(timeout));
}

BusTransfer transfer(BusClient& client, const std::string& batch, bool send,
                     const std::optional<std::string>& role, const TensorList& tensors,
                     bool blocking, std::optional<std::int64_t> version, Timeout timeout,
                     std::int64_t min_readers) {
  if (min_readers < 0) {
    throw Error(Code::invalid_argument, "min_readers is negative");
  }
  const std::vector<TensorView> views = views_of(tensors);
  const WithoutGil without_gil;
  return BusTransfer(client->transfer(batch, direction(send), role, views, blocking,
                                      deadline(timeout), version, min_readers));
}

std::int64_t publish(BusClient& client, const std::string& batch,
                     const std::optional<std::string>& role, const TensorList& tensors,
                     std::optional<std::int64_t> version, double patience, bool withdraw,
                     Timeout timeout) {
  if (!(patience >= 0)) throw Error(Code::invalid_argument, "patience is negative");
  // Beyond that nobody can tell it from waiting for ever.
  constexpr double longest = 1e6;
  const std::chrono::duration<double> seconds(std::min(patience, longest));
  const bus::PublishOptions options{version, std::chrono::duration_cast<Duration>(seconds),
                                    withdraw};
  const std::vector<TensorView> views = views_of(tensors);
  const WithoutGil without_gil;
  return client->publish(batch, role, views, options, deadline(timeout));
}

BusTransfer pull(BusClient& client, const std::string& batch, std::optional<std::string> role,
                 const TensorList& tensors, std::optional<std::int64_t> version,
                 std::optional<std::int64_t> newer_than, bool together, bool blocking,
                 Timeout timeout) {
  const std::vector<TensorView> views = views_of(tensors);
  const WithoutGil without_gil;
  return BusTransfer(client->pull({batch, std::move(role), version, newer_than, together}, views,
                                  blocking, deadline(timeout)));
}

void replace(BusClient& client, const std::string& batch, const std::optional<std::string>& role,
             const TensorList& tensors, Timeout timeout) {
  const std::vector<TensorView> views = views_of(tensors);
  const WithoutGil without_gil;
  client->replace(batch, role, views, deadline(timeout));
}

std::vector<std::size_t> moved(BusClient& client, const std::string& batch,
                               const std::optional<std::string>& role, const TensorList& tensors) {
  const std::vector<TensorView> views = views_of(tensors);
  const WithoutGil without_gil;
  return client->moved(batch, role, views);
}

void init_pair(BusClient& client, std::string pair, std::string local, std::string remote,
               std::int64_t world_size, std::optional<Shape> mesh,
               std::vector<Placement> placements,
               std::optional<std::vector<std::int64_t>> coordinate, bool blocking, Timeout timeout,
               bool alone) {
  bus::InitPair command{
      std::move(pair), std::move(local), std::move(remote), world_size, {}, alone};
  if (mesh) {
    command.layout = bus::SideLayout{*mesh, std::move(placements), std::move(coordinate)};
  }
  const WithoutGil without_gil;
  client.init_pair(command, blocking, deadline(timeout));
}

void embed(BusClient* place, nb::object store, std::optional<Rank> rank, std::string space,
           std::string bind, Ports ports, Timeout timeout, BusClient::CopyThreads copy_threads) {
  std::shared_ptr<Store> kept = keep_as<Store>(std::move(store));
  const WithoutGil without_gil;
  new (place) BusClient(std::move(kept), rank, std::move(space), std::move(bind), ports, timeout,
                        copy_threads);
}

nb::object look(BusClient& client, Timeout timeout) {
  bus::QueueState state;
  {
    const WithoutGil without_gil;
    state = client->queue(deadline(timeout));
  }
  if (!state.first) return nb::make_tuple(state.size, nb::none());
  return nb::make_tuple(state.size, nb::make_tuple(state.first_type, state.first_context));
}

void bind_transfer(nb::module_& module) {
  nb::class_<BusParting>(module, "BusParting").def("done", &BusParting::done);
  nb::class_<BusTransfer>(module, "BusTransfer", "See tensorbus.client.Transfer.")
      .def(
          "done", [](BusTransfer& self) { return self.state().done(); }, Release())
      .def(
          "wait", [](BusTransfer& self, Timeout timeout) { self.state().wait(deadline(timeout)); },
          nb::arg("timeout").none(), Release())
      .def(
          "result",
          [](BusTransfer& self, Timeout timeout) {
            bus::Outcome outcome;
            {
              const WithoutGil without_gil;
              self.state().result(deadline(timeout));
              outcome = self.state().wait(Deadline::never());
            }
            nb::dict paths;
            for (const auto& [path, bytes] : outcome.bytes_by_path) {
              paths[nb::str(path.c_str())] = nb::int_(bytes);
            }
            return nb::make_tuple(outcome.round, readers_of(outcome), paths, outcome.version);
          },
          nb::arg("timeout").none(),
          nb::sig("def result(self, timeout: float | None) -> "
                  "tuple[int, dict[int, str], dict[str, int], int]"),
          "(round, readers, bytes by path, version)")
      .def(
          "acquire",
          [](BusTransfer& self, Timeout timeout) {
            return self.state().acquire(deadline(timeout));
          },
          nb::arg("timeout").none(), Release(), "False if the time has passed.")
      .def(
          "release", [](BusTransfer& self) { self.state().release(); }, Release())
      .def(
          "unlink", [](BusTransfer& self) { self.state().unlink(); }, Release())
      .def(
          "value", [](BusTransfer& self) { return self.state().value(); }, Release())
      .def(
          "name",
          [](BusTransfer& self, Timeout timeout) { return self.state().name(deadline(timeout)); },
          nb::arg("timeout").none(), Release())
      .def(
          "cancel",
          [](BusTransfer& self, const std::string& why) {
            self.state().cancel({Code::cancelled, why});
          },
          nb::arg("why"), Release())
      .def("progress",
           [](BusTransfer& self) {
             return std::pair(self.state().bytes_done(), self.state().bytes_total());
           })
      .def("fd", &BusTransfer::fd, "Readable when it is over.");
}

void bind_client(nb::module_& module) {
  nb::class_<BusClient>(module, "BusClient", "See tensorbus.TensorBusClient.")
      .def(nb::init<std::string, std::string, std::string, Rank, Timeout, BusClient::CopyThreads>(),
           nb::arg("queue_path"), nb::arg("state_path"), nb::arg("namespace"), nb::arg("rank"),
           nb::arg("timeout").none(), nb::arg("copy_threads").none() = nb::none(), Release())
      .def("__init__", &embed, nb::arg("store"), nb::arg("rank").none(), nb::arg("namespace"),
           nb::arg("bind"), nb::arg("ports"), nb::arg("timeout").none(),
           nb::arg("copy_threads").none() = nb::none(),
           nb::sig("def __init__(self, store: Store, rank: int | None, namespace: str, bind: str, "
                   "ports: tuple[int, int], timeout: float | None, "
                   "copy_threads: int | None = None) -> None"))
      .def_prop_ro("rank", &BusClient::rank)
      .def_prop_ro(
          "copy_threads", [](BusClient& self) { return self->crew().size(); },
          "How many threads a copy of this rank takes now, the caller's included.")
      .def(
          "copy_into",
          [](BusClient& self, const nb::list& targets, const nb::list& sources) {
            copy_into(targets, sources, self->crew());
          },
          nb::arg("targets"), nb::arg("sources"),
          nb::sig("def copy_into(self, targets: list[object], sources: list[object]) -> None"),
          "Copies tensors, each to one of the same type and shape.")
      .def("init_pair", &init_pair, nb::arg("pair"), nb::arg("local"), nb::arg("remote"),
           nb::arg("world_size"), nb::arg("mesh").none(), nb::arg("placements"),
           nb::arg("coordinate").none(), nb::arg("blocking"), nb::arg("timeout").none(),
           nb::arg("alone") = false)
      .def("register_tensors", &register_tensors, nb::arg("batch"), nb::arg("tensors"),
           nb::arg("items"), nb::arg("global_shapes"), nb::arg("chunk_bytes").none(),
           nb::arg("role").none(), nb::arg("verify"), nb::arg("layouts"), nb::arg("starts"),
           nb::arg("pairs"), nb::arg("versioned").none(), nb::arg("timeout").none(),
           nb::arg("shelf_dtype").none() = nb::none(),
           nb::sig("def register_tensors(self, batch: str, tensors: list[object], "
                   "items: list[tuple[str, str]], "
                   "global_shapes: list[collections.abc.Sequence[int] | None], "
                   "chunk_bytes: int | None, role: str | None, verify: str, "
                   "layouts: collections.abc.Sequence[object], "
                   "starts: collections.abc.Sequence[collections.abc.Sequence[int] | None], "
                   "pairs: list[str], versioned: tuple[bool, int, bool, int | None] | None, "
                   "timeout: float | None, shelf_dtype: str | None = None) -> int"))
      .def(
          "refuse",
          [](BusClient& self, const std::string& batch, const std::string& role,
             const std::string& pair, bool send, const std::string& why, Timeout timeout) {
            self->refuse(batch, role, pair, {direction(send), 0}, why, deadline(timeout));
          },
          nb::arg("batch"), nb::arg("role"), nb::arg("pair"), nb::arg("send"), nb::arg("why"),
          nb::arg("timeout").none(), Release(),
          "Tells the others of a batch why this rank cannot take part in it.")
      .def("transfer", &transfer, nb::arg("batch"), nb::arg("send"), nb::arg("role").none(),
           nb::arg("tensors"), nb::arg("blocking"), nb::arg("version").none(),
           nb::arg("timeout").none(), nb::arg("min_readers") = 0,
           nb::sig("def transfer(self, batch: str, send: bool, role: str | None, "
                   "tensors: Tensors, blocking: bool, version: int | None, "
                   "timeout: float | None, min_readers: int = 0) -> BusTransfer"))
      .def("publish", &publish, nb::arg("batch"), nb::arg("role").none(), nb::arg("tensors"),
           nb::arg("version").none(), nb::arg("patience"), nb::arg("withdraw"),
           nb::arg("timeout").none(),
           nb::sig("def publish(self, batch: str, role: str | None, tensors: Tensors, "
                   "version: int | None, patience: float, withdraw: bool, "
                   "timeout: float | None) -> int"))
      .def("pull", &pull, nb::arg("batch"), nb::arg("role").none(), nb::arg("tensors"),
           nb::arg("version").none(), nb::arg("newer_than").none(), nb::arg("together"),
           nb::arg("blocking"), nb::arg("timeout").none(),
           nb::sig("def pull(self, batch: str, role: str | None, tensors: Tensors, "
                   "version: int | None, newer_than: int | None, together: bool, "
                   "blocking: bool, timeout: float | None) -> BusTransfer"))
      .def(
          "newest",
          [](BusClient& self, const std::string& batch, std::optional<std::string> role,
             Timeout timeout) {
            return self->newest({batch, std::move(role)}, deadline(timeout));
          },
          nb::arg("batch"), nb::arg("role").none(), nb::arg("timeout").none(), Release(),
          "0 if there is none.")
      .def("replace", &replace, nb::arg("batch"), nb::arg("role").none(), nb::arg("tensors"),
           nb::arg("timeout").none(),
           nb::sig("def replace(self, batch: str, role: str | None, tensors: Tensors, "
                   "timeout: float | None) -> None"))
      .def("moved", &moved, nb::arg("batch"), nb::arg("role").none(), nb::arg("tensors"),
           nb::sig("def moved(self, batch: str, role: str | None, tensors: Tensors) -> "
                   "list[int]"))
      .def(
          "versions",
          [](BusClient& self, const std::string& batch, std::optional<std::string> role,
             Timeout timeout) {
            return self->versions({batch, std::move(role)}, deadline(timeout));
          },
          nb::arg("batch"), nb::arg("role").none(), nb::arg("timeout").none(), Release())
      .def(
          "query_signal",
          [](BusClient& self, const std::string& batch, bool wait,
             std::optional<std::int64_t> round, std::optional<std::string> role, Timeout timeout) {
            return self->query_signal({batch, wait, round, std::move(role)}, deadline(timeout));
          },
          nb::arg("batch"), nb::arg("wait"), nb::arg("round").none(), nb::arg("role").none(),
          nb::arg("timeout").none(), Release())
      .def(
          "close_batch",
          [](BusClient& self, std::string batch, std::uint64_t registration, Timeout timeout,
             bool back_soon) {
            self->close_batch({std::move(batch), registration, back_soon}, true, deadline(timeout));
          },
          nb::arg("batch"), nb::arg("registration"), nb::arg("timeout").none(),
          nb::arg("back_soon") = false, Release())
      .def(
          "drop_batch",
          [](BusClient& self, std::string batch, std::uint64_t registration, bool back_soon) {
            const std::shared_ptr<bus::Pending> pending =
                self->drop_batch({std::move(batch), registration, back_soon});
            return BusParting([pending] { return pending == nullptr || pending->done(); });
          },
          nb::arg("batch"), nb::arg("registration"), nb::arg("back_soon") = false, Release())
      .def(
          "registration_of",
          [](BusClient& self, const std::string& batch, const std::optional<std::string>& role) {
            return self->registration_of(batch, role);
          },
          nb::arg("batch"), nb::arg("role").none() = nb::none(), Release(), "0 if there is none.")
      .def("queue", &look, nb::arg("timeout").none(),
           nb::sig("def queue(self, timeout: float | None) -> "
                   "tuple[int, tuple[str, str] | None]"),
           "(size, (type, context) of the first)")
      .def_prop_ro("agent_pid", [](BusClient& self) { return self->agent_pid(); })
      .def("abandon", &BusClient::abandon, nb::arg("timeout").none(), Release(),
           "Closes it on another thread.")
      .def("close", &BusClient::close, nb::arg("timeout").none(), Release());
}

void bind_agent(nb::module_& module) {
  using Agent = Owned<bus::Daemon>;
  nb::class_<Agent>(module, "BusAgent", "See tensorbus.agent.TensorBusAgent.")
      .def(
          "__init__",
          [](Agent* self, nb::object store, Rank rank, std::string space, std::string queue_path,
             std::string state_path, std::string bind, Timeout timeout) {
            std::shared_ptr<Store> kept = keep_as<Store>(std::move(store));
            bus::DaemonOptions options;
            options.rank = rank;
            options.space = std::move(space);
            options.queue_path = std::move(queue_path);
            options.state_path = std::move(state_path);
            options.bind = std::move(bind);
            const WithoutGil without_gil;
            new (self) Agent(std::make_unique<bus::Daemon>(std::move(kept), std::move(options),
                                                           deadline(timeout)));
          },
          nb::arg("store"), nb::arg("rank"), nb::arg("namespace"), nb::arg("queue_path"),
          nb::arg("state_path"), nb::arg("bind"), nb::arg("timeout").none(),
          nb::sig("def __init__(self, store: Store, rank: int, namespace: str, queue_path: str, "
                  "state_path: str, bind: str, timeout: float | None) -> None"))
      .def(
          "run", [](Agent& self) { self->run(); }, Release(), "Until stop() or Ctrl-C.")
      .def(
          "step", [](Agent& self) { self->step(); }, Release())
      .def(
          "stop", [](Agent& self) { self->stop(); }, Release())
      .def(
          "close", [](Agent& self, bool destroy) { self->close(destroy); }, nb::arg("destroy"),
          Release());
}

}  // namespace

void bind_bus(nb::module_& module) {
  bind_transfer(module);
  bind_client(module);
  bind_agent(module);
  module.def("default_queue_path", &bus::default_queue_path, nb::arg("rank"),
             "Where the commands of this rank's agent are unless somebody says otherwise.");
  module.def("default_state_path", &bus::default_state_path, nb::arg("rank"),
             "Where the state of this rank's agent is unless somebody says otherwise.");
  module.def("check_agent_file", &bus::check_lmdb_file, nb::arg("file"), nb::arg("path"),
             "Raises unless the open file is an agent's of this user, and whole.");
  module.def("semaphore_name", &bus::semaphore_name, nb::arg("command_type"),
             nb::arg("context_id"));
  module.def(
      "allow_ptrace",
      [](std::int64_t pid) {
        return pid < 0 ? os::allow_all_into_memory()
                       : os::allow_into_memory(static_cast<pid_t>(pid));
      },
      nb::arg("pid"), "Lets a process (-1: any) read our memory, where Yama asks; False without.");
}

}  // namespace tensorbus::python
