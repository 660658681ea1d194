// The bus: translation of bus/client/client.h and of agents. The package's client, agent and
// bootstrap modules put the seed's signatures on top.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include "bindings.h"
#include "bus/files/lmdb_file.h"
#include "bus/files/paths.h"
#include "bus/host/daemon.h"
#include "bus_client.h"
#include "gil.h"
#include "intake.h"
#include "os/process/process.h"
#include "store_arguments.h"

namespace tensorbus::python {
namespace {

using PairedName = std::pair<std::string, std::string>;  // pair, name
TensorList take_in_batch(const nb::list& tensors, const std::vector<PairedName>& items) {
  return take_in_with_devices(tensors, nb::none(), [&](std::size_t index) {
    const std::string pair = index < items.size() ? items[index].first : "";
    const std::string name = index < items.size() ? items[index].second : "";
    return (name.empty() ? "tensor " + std::to_string(index) : "tensor \"" + name + "\"") +
           " (pair \"" + pair + "\")";
  });
}

std::uint64_t register_tensors(BusClient& client, const std::string& batch, const nb::list& tensors,
                               const std::vector<PairedName>& items,
                               const std::vector<std::optional<Shape>>& global_shapes,
                               std::optional<std::int64_t> chunk_bytes,
                               std::optional<std::string> role,
                               const std::optional<std::string>& verify, Timeout timeout) {
  const TensorList taken = take_in_batch(tensors, items);
  std::vector<bus::BatchTensor> batch_tensors;
  batch_tensors.reserve(taken.size());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    batch_tensors.push_back({taken[i], items.at(i).first, items.at(i).second, global_shapes.at(i)});
  }
  bus::RegisterOptions options;
  options.chunk_bytes = chunk_bytes;
  options.role = std::move(role);
  options.verify = parse_verify(verify);
  const WithoutGil without_gil;
  return client->register_tensors(batch, batch_tensors, options, deadline(timeout));
}

BusTransfer transfer(BusClient& client, const std::string& batch, bool send,
                     const std::optional<std::string>& role, const TensorList& tensors,
                     bool blocking, Timeout timeout) {
  const std::vector<TensorView> views = views_of(tensors);
  const WithoutGil without_gil;
  const Deadline latest = deadline(timeout);
  device::wait_until_passed(tensors.moments(), latest);
  return BusTransfer(client->transfer(batch, direction(send), role, views, blocking, latest));
}

void init_pair(BusClient& client, std::string pair, std::string local, std::string remote,
               std::int64_t world_size, std::optional<Shape> mesh,
               std::vector<Placement> placements,
               std::optional<std::vector<std::int64_t>> coordinate, bool blocking,
               Timeout timeout) {
  bus::InitPair command{std::move(pair), std::move(local), std::move(remote), world_size, {}};
  if (mesh) {
    command.layout = bus::SideLayout{*mesh, std::move(placements), std::move(coordinate)};
  }
  const WithoutGil without_gil;
  client.init_pair(command, blocking, deadline(timeout));
}

void embed(BusClient* place, nb::object store, std::optional<Rank> rank, std::string space,
           std::string bind, Ports ports, Timeout timeout, BusClient::CopyThreads copy_threads,
           std::optional<std::string> metrics) {
  std::shared_ptr<Store> kept = keep_as<Store>(std::move(store));
  const WithoutGil without_gil;
  new (place) BusClient(std::move(kept), rank, std::move(space), std::move(bind), ports, timeout,
                        copy_threads, std::move(metrics));
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
            return nb::make_tuple(outcome.round, readers_of(outcome.readers), paths);
          },
          nb::arg("timeout").none(),
          nb::sig("def result(self, timeout: float | None) -> "
                  "tuple[int, dict[int, str], dict[str, int]]"),
          "(round, readers, bytes by path)")
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
           nb::arg("copy_threads").none() = nb::none(), nb::arg("metrics").none() = nb::none(),
           nb::sig("def __init__(self, store: Store, rank: int | None, namespace: str, bind: str, "
                   "ports: tuple[int, int], timeout: float | None, "
                   "copy_threads: int | None = None, metrics: str | None = None) -> None"))
      .def_prop_ro("rank", &BusClient::rank)
      .def_prop_ro(
          "copy_threads", [](BusClient& self) { return self->crew().size(); },
          "How many threads a copy of this rank takes now, the caller's included.")
      .def("init_pair", &init_pair, nb::arg("pair"), nb::arg("local"), nb::arg("remote"),
           nb::arg("world_size"), nb::arg("mesh").none(), nb::arg("placements"),
           nb::arg("coordinate").none(), nb::arg("blocking"), nb::arg("timeout").none())
      .def("register_tensors", &register_tensors, nb::arg("batch"), nb::arg("tensors"),
           nb::arg("items"), nb::arg("global_shapes"), nb::arg("chunk_bytes").none(),
           nb::arg("role").none(), nb::arg("verify").none(), nb::arg("timeout").none(),
           nb::sig("def register_tensors(self, batch: str, tensors: list[object], "
                   "items: list[tuple[str, str]], "
                   "global_shapes: list[collections.abc.Sequence[int] | None], "
                   "chunk_bytes: int | None, role: str | None, verify: str | None, "
                   "timeout: float | None) -> int"))
      .def("transfer", &transfer, nb::arg("batch"), nb::arg("send"), nb::arg("role").none(),
           nb::arg("tensors"), nb::arg("blocking"), nb::arg("timeout").none(),
           nb::sig("def transfer(self, batch: str, send: bool, role: str | None, "
                   "tensors: Tensors, blocking: bool, timeout: float | None) -> BusTransfer"))
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
          [](BusClient& self, std::string batch, std::uint64_t registration, Timeout timeout) {
            self->close_batch({std::move(batch), registration}, true, deadline(timeout));
          },
          nb::arg("batch"), nb::arg("registration"), nb::arg("timeout").none(), Release())
      .def(
          "drop_batch",
          [](BusClient& self, std::string batch, std::uint64_t registration) {
            const std::shared_ptr<bus::Pending> pending =
                self->drop_batch({std::move(batch), registration});
            return BusParting([pending] { return pending == nullptr || pending->done(); });
          },
          nb::arg("batch"), nb::arg("registration"), Release())
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

std::optional<bus::Verify> parse_verify(const std::optional<std::string>& verify) {
  if (!verify) return std::nullopt;
  for (const auto known :
       {bus::Verify::off, bus::Verify::first, bus::Verify::sample, bus::Verify::full}) {
    if (*verify == to_string(known)) return known;
  }
  throw Error(Code::invalid_argument,
              "verify is \"off\", \"first\", \"sample\" or \"full\", not \"" + *verify + "\"");
}

nb::dict readers_of(const std::map<Rank, bus::ReaderOutcome>& readers) {
  nb::dict told;
  for (const auto& [rank, how] : readers) {
    told[nb::int_(rank)] = nb::str(to_string(how).data(), to_string(how).size());
  }
  return told;
}

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
