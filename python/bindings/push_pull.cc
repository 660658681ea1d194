// Push-pull: translation of tensorbus/push_pull.h. The package's fserver module puts the signatures
// of the library that it stands in for on top.
#include "tensorbus/push_pull.h"

#include "bindings.h"
#include "gil.h"
#include "intake.h"
#include "items.h"
#include "pooled.h"
#include "push_pull/request/device_items.h"
#include "push_pull/request/trace.h"
#include "store_arguments.h"

namespace tensorbus::python {

// A worker, and what it moves of devices.
struct PushPullWorker {
  explicit PushPullWorker(const push_pull::NodeOptions& options) : core(options) {}

  push_pull::Worker core;
  push_pull::DeviceItems devices;
};

}  // namespace tensorbus::python

namespace nanobind::detail {

using tensorbus::python::destroy_without_gil;
namespace push_pull = tensorbus::push_pull;

template <>
void wrap_destruct<push_pull::Scheduler>(void* node) noexcept {
  destroy_without_gil<push_pull::Scheduler>(node);
}
template <>
void wrap_destruct<tensorbus::python::PushPullWorker>(void* node) noexcept {
  destroy_without_gil<tensorbus::python::PushPullWorker>(node);
}
template <>
void wrap_destruct<push_pull::Server>(void* node) noexcept {
  destroy_without_gil<push_pull::Server>(node);
}

}  // namespace nanobind::detail

namespace tensorbus::python {
namespace {

using push_pull::Handler;
using push_pull::Item;

constexpr const char* exceptions = "tensorbus.fserver.errors";

// There misuse is a RuntimeError, and so is a timeout.
template <typename Call>
auto with_their_errors(Call call) {
  try {
    return call();
  } catch (const Error& error) {
    const char* name = error.code() == Code::invalid_argument ? "BadArgument"
                       : error.code() == Code::timeout        ? "WaitTimeout"
                                                              : nullptr;
    if (name == nullptr) throw;
    PyErr_SetString(nb::module_::import_(exceptions).attr(name).ptr(), error.what());
    throw nb::python_error();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ValueError)) throw;
    nb::raise_from(error, nb::module_::import_(exceptions).attr("BadArgument").ptr(), "%s",
                   nb::str(error.value()).c_str());
  }
}

Handler handler_of(std::int64_t number) {
  if (number < 0) {
    throw Error(Code::invalid_argument, "no request has the handler " + std::to_string(number));
  }
  return static_cast<Handler>(number);
}

// Of anything that is a sequence of numbers.
template <typename Number>
std::vector<Number> numbers_of(nb::handle sequence, const char* what) {
  try {
    const Items items(sequence, "");
    std::vector<Number> numbers(items.size());
    std::size_t taken = 0;
    while (taken < numbers.size() && taken < items.size() &&
           nb::try_cast(nb::handle(items[taken]), numbers[taken])) {
      ++taken;
    }
    if (taken == numbers.size()) return numbers;
  } catch (const nb::python_error&) {  // no sequence
  }
  PyErr_Clear();
  throw Error(Code::invalid_argument, std::string(what) + " must be a sequence of numbers");
}

TensorList tensors_of(nb::handle sequence, const char* what) {
  return take_in(sequence, [what](std::size_t index) {
    return std::string(what) + " " + std::to_string(index);
  });
}

// The same of tensors that may be on devices.
TensorList moved_of(nb::handle sequence, const char* what) {
  return take_in_with_devices(sequence, nb::none(), [what](std::size_t index) {
    return std::string(what) + " " + std::to_string(index);
  });
}

// What the streams of the calling thread have been given comes first, for pushes and for pulls.
Handler push_pull_on_devices(PushPullWorker& worker, const device::Moments& moments,
                             const std::vector<Item>& pushes, const std::vector<Item>& pulls,
                             Deadline deadline, std::shared_ptr<const void> kept) {
  device::wait_until_passed(moments, deadline);
  const push_pull::DeviceItems::Stand pushed = worker.devices.of_pushes(pushes, deadline);
  auto pulled = worker.devices.of_pulls(pulls);
  using Held = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  const Handler first = worker.core.push_pull(pushed.items, pulled->items, deadline,
                                              std::make_shared<Held>(std::move(kept), pulled));
  worker.devices.keep(first, pulls, std::move(pulled));
  return first;
}

void wait_on_devices(PushPullWorker& worker, Handler handler, Deadline deadline) {
  const Handler first = worker.core.handlers(handler).front();
  try {
    worker.core.wait(handler, deadline);
  } catch (...) {
    worker.devices.forget(first);
    throw;
  }
  worker.devices.store(first, deadline);
}

std::vector<Item> items_of(const TensorList& tensors, const std::vector<std::int64_t>& keys,
                           const char* what) {
  if (tensors.size() != keys.size()) {
    throw Error(Code::invalid_argument, std::to_string(tensors.size()) + " " + what +
                                            " tensors for " + std::to_string(keys.size()) +
                                            " keys");
  }
  std::vector<Item> items;
  for (std::size_t i = 0; i < keys.size(); ++i) items.push_back({keys[i], tensors[i]});
  return items;
}

std::uint64_t push_pull_(PushPullWorker& worker, nb::handle push_tensors, nb::handle push_keys,
                         nb::handle pull_tensors, nb::handle pull_keys,
                         std::optional<double> timeout) {
  return with_their_errors([&] {
    const TensorList pushed = moved_of(push_tensors, "push tensor");
    const TensorList pulled = moved_of(pull_tensors, "pull tensor");
    const auto pushes = items_of(pushed, numbers_of<std::int64_t>(push_keys, "push keys"), "push");
    const auto pulls = items_of(pulled, numbers_of<std::int64_t>(pull_keys, "pull keys"), "pull");
    std::shared_ptr<const void> kept;
    if (!pulls.empty()) kept = keep(nb::steal(PySequence_Tuple(pull_tensors.ptr())));
    const WithoutGil without_gil;
    if (pushed.on_devices() || pulled.on_devices()) {
      device::Moments moments = pushed.moments();
      moments.insert(moments.end(), pulled.moments().begin(), pulled.moments().end());
      return static_cast<std::uint64_t>(
          push_pull_on_devices(worker, moments, pushes, pulls, deadline(timeout), std::move(kept)));
    }
    return static_cast<std::uint64_t>(
        worker.core.push_pull(pushes, pulls, deadline(timeout), std::move(kept)));
  });
}

// A request with its tensors. Python can give a tensor other memory, so they are looked at again
// whenever it is sent.
struct Prepared {
  nb::tuple push_tensors;
  nb::tuple pull_tensors;
  TensorList pushed;
  TensorList pulled;
  push_pull::PreparedRequest request;
};

nb::tuple as_tuple(nb::handle sequence) {
  nb::tuple items = nb::steal<nb::tuple>(PySequence_Tuple(sequence.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  return items;
}

void check_same(const TensorList& before, const nb::tuple& tensors, const char* what) {
  const TensorList now = tensors_of(tensors, what);
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now.is_same(i, before)) continue;
    throw Error(Code::invalid_argument,
                std::string(what) + " " + std::to_string(i) +
                    " has other memory, or another form, than when the request was prepared");
  }
}

Prepared prepare(PushPullWorker& worker, nb::handle push_tensors, nb::handle push_keys,
                 nb::handle pull_tensors, nb::handle pull_keys) {
  return with_their_errors([&] {
    Prepared prepared{as_tuple(push_tensors), as_tuple(pull_tensors), {}, {}, {}};
    prepared.pushed = tensors_of(prepared.push_tensors, "push tensor");
    prepared.pulled = tensors_of(prepared.pull_tensors, "pull tensor");
    const auto pushes =
        items_of(prepared.pushed, numbers_of<std::int64_t>(push_keys, "push keys"), "push");
    const auto pulls =
        items_of(prepared.pulled, numbers_of<std::int64_t>(pull_keys, "pull keys"), "pull");
    prepared.request = worker.core.prepare(pushes, pulls, keep(prepared.pull_tensors));
    return prepared;
  });
}

std::uint64_t push_pull_prepared(PushPullWorker& worker, const Prepared& prepared,
                                 std::optional<double> timeout) {
  return with_their_errors([&] {
    check_same(prepared.pushed, prepared.push_tensors, "push tensor");
    check_same(prepared.pulled, prepared.pull_tensors, "pull tensor");
    const push_pull::PreparedRequest request = prepared.request;
    const WithoutGil without_gil;
    return static_cast<std::uint64_t>(worker.core.push_pull(request, deadline(timeout)));
  });
}

nb::list get_batch(push_pull::Server& server, std::optional<double> timeout, nb::handle workers,
                   nb::handle batch_type) {
  return with_their_errors([&] {
    std::vector<int> ranks;
    if (!workers.is_none()) ranks = numbers_of<int>(workers, "workers");
    if (!workers.is_none() && ranks.empty()) {
      throw Error(Code::invalid_argument, "workers must name at least one");
    }
    std::vector<push_pull::Request> requests;
    {
      const WithoutGil without_gil;
      server.get_batch(requests, ranks, deadline(timeout));
    }
    nb::list batches;
    for (const push_pull::Request& request : requests) {
      nb::list tensors;
      nb::list keys;
      for (const push_pull::Received& each : request.tensors) {
        const TensorView& view = each.tensor;
        // The memory is the core's; its type does not matter to who only keeps it.
        const std::shared_ptr<std::byte> memory(each.memory, view.data);
        tensors.append(to_python({memory, view.dtype, Shape(view.shape.begin(), view.shape.end()),
                                  Shape(view.strides.begin(), view.strides.end())},
                                 Framework::torch));
        keys.append(each.key);
      }
      batches.append(batch_type(static_cast<std::uint64_t>(request.handler), tensors, keys));
    }
    return batches;
  });
}

void respond(push_pull::Server& server, nb::handle tensors, std::int64_t handler) {
  with_their_errors([&] {
    const TensorList list = tensors_of(tensors, "answer");
    const std::vector<TensorView> views = views_of(list);
    const WithoutGil without_gil;
    server.respond(handler_of(handler), views);
  });
}

void respond_vec(push_pull::Server& server, nb::handle buffer, nb::handle tensors,
                 nb::handle handlers, bool every_from_row_0) {
  with_their_errors([&] {
    const TensorList buffers = tensors_of(nb::make_tuple(buffer), "answer buffer");
    const TensorList list = tensors_of(tensors, "tensor");
    const std::vector<TensorView> views = views_of(list);
    std::vector<Handler> requests;
    for (const std::int64_t handler : numbers_of<std::int64_t>(handlers, "handlers")) {
      requests.push_back(handler_of(handler));
    }
    const WithoutGil without_gil;
    server.respond_rows(buffers[0], views, requests, every_from_row_0);
  });
}

void register_buffer(push_pull::Server& server, nb::object tensor, nb::handle workers,
                     nb::handle keys) {
  with_their_errors([&] {
    const TensorList list = tensors_of(nb::make_tuple(tensor), "receive buffer");
    const auto ranks = numbers_of<int>(workers, "worker ranks");
    const auto numbers = numbers_of<std::int64_t>(keys, "push keys");
    std::shared_ptr<const void> kept = keep(std::move(tensor));
    const WithoutGil without_gil;
    server.register_buffer(list[0], ranks, numbers, std::move(kept));
  });
}

push_pull::Worker& core_of(PushPullWorker& worker) { return worker.core; }
template <typename Node>
Node& core_of(Node& node) {
  return node;
}

template <typename Node>
void barrier(Node& node, bool servers, bool workers, bool all_lanes,
             std::optional<double> timeout) {
  with_their_errors([&] {
    const WithoutGil without_gil;
    core_of(node).barrier({servers, workers, all_lanes}, deadline(timeout));
  });
}

template <typename Node>
void stop(Node& node, std::optional<double> timeout) {
  with_their_errors([&] {
    const WithoutGil without_gil;
    core_of(node).stop(deadline(timeout));
  });
}

template <typename Node>
void construct(Node* place, push_pull::Environment environment) {
  with_their_errors([&] {
    const WithoutGil without_gil;
    environment.options.pool = process_pool();
    new (place) Node(environment.options);
  });
}

template <typename Node>
void bind_node(nb::class_<Node>& type) {
  type.def("__init__", &construct<Node>, nb::arg("environment"))
      .def("barrier", &barrier<Node>, nb::arg("servers"), nb::arg("workers"), nb::arg("all_lanes"),
           nb::arg("timeout").none())
      .def("stop", &stop<Node>, nb::arg("timeout").none());
}

void bind_worker(nb::module_& module) {
  nb::class_<PushPullWorker> type(module, "PushPullWorker");
  bind_node(type);
  type.def("push_pull", &push_pull_, nb::arg("push_tensors"), nb::arg("push_keys"),
           nb::arg("pull_tensors"), nb::arg("pull_keys"), nb::arg("timeout").none(),
           nb::sig("def push_pull(self, push_tensors: object, push_keys: object, pull_tensors: "
                   "object, pull_keys: object, timeout: float | None) -> int"))
      .def("prepare", &prepare, nb::arg("push_tensors"), nb::arg("push_keys"),
           nb::arg("pull_tensors"), nb::arg("pull_keys"),
           nb::sig("def prepare(self, push_tensors: object, push_keys: object, pull_tensors: "
                   "object, pull_keys: object) -> PushPullRequest"))
      .def("push_pull_prepared", &push_pull_prepared, nb::arg("request"), nb::arg("timeout").none())
      .def(
          "wait",
          [](PushPullWorker& worker, std::int64_t handler, std::optional<double> timeout) {
            with_their_errors([&] {
              const WithoutGil without_gil;
              if (worker.devices.keeps_any()) {
                return wait_on_devices(worker, handler_of(handler), deadline(timeout));
              }
              worker.core.wait(handler_of(handler), deadline(timeout));
            });
          },
          nb::arg("handler"), nb::arg("timeout").none())
      .def(
          "handlers",
          [](const PushPullWorker& worker, std::int64_t handler) {
            return with_their_errors([&] {
              const WithoutGil without_gil;
              std::vector<std::uint64_t> numbers;
              for (const Handler each : worker.core.handlers(handler_of(handler))) {
                numbers.push_back(static_cast<std::uint64_t>(each));
              }
              return numbers;
            });
          },
          nb::arg("handler"))
      .def(
          "trace",
          [](const PushPullWorker& worker, std::int64_t handler, std::optional<int> server) {
            return with_their_errors([&] {
              const WithoutGil without_gil;
              const push_pull::Trace trace = worker.core.trace(handler_of(handler), server);
              return std::vector<std::int64_t>(trace.begin(), trace.end());
            });
          },
          nb::arg("handler"), nb::arg("server").none())
      .def(
          "counts",
          [](const PushPullWorker& worker) {
            const push_pull::WorkerCounts counts =
                call_without_gil([&] { return worker.core.counts(); });
            nb::dict result;
            result["answers_straight"] = counts.answers_straight;
            result["answers_copied"] = counts.answers_copied;
            result["slots"] = counts.slots;
            result["repeated"] = counts.repeated;
            result["requests"] = counts.requests;
            return result;
          },
          nb::sig("def counts(self) -> dict[str, int]"));
}

void bind_server(nb::module_& module) {
  nb::class_<push_pull::Server> type(module, "PushPullServer");
  bind_node(type);
  type.def("get_batch", &get_batch, nb::arg("timeout").none(), nb::arg("workers").none(),
           nb::arg("batch_type"),
           nb::sig("def get_batch[T](self, timeout: float | None, workers: object, batch_type: "
                   "type[T]) -> list[T]"))
      .def("respond", &respond, nb::arg("tensors"), nb::arg("handler"),
           nb::sig("def respond(self, tensors: object, handler: int) -> None"))
      .def("respond_vec", &respond_vec, nb::arg("buffer"), nb::arg("tensors"), nb::arg("handlers"),
           nb::arg("every_from_row_0"),
           nb::sig("def respond_vec(self, buffer: object, tensors: object, handlers: object, "
                   "every_from_row_0: bool) -> None"))
      .def("register_buffer", &register_buffer, nb::arg("tensor"), nb::arg("workers"),
           nb::arg("keys"),
           nb::sig("def register_buffer(self, tensor: object, workers: object, keys: object) -> "
                   "None"))
      .def(
          "counts",
          [](const push_pull::Server& server) {
            const push_pull::ServerCounts counts =
                call_without_gil([&] { return server.counts(); });
            nb::dict result;
            result["pushes_straight"] = counts.pushes_straight;
            result["pushes_copied"] = counts.pushes_copied;
            result["slots"] = counts.slots;
            result["requests"] = counts.requests;
            return result;
          },
          nb::sig("def counts(self) -> dict[str, int]"));
}

}  // namespace

void bind_push_pull(nb::module_& module) {
  nb::class_<push_pull::Environment>(module, "PushPullEnvironment",
                                     "What DMLC_* and STEPMESH_* say.")
      .def_static("read",
                  [] { return with_their_errors([] { return push_pull::from_environment(); }); })
      .def_prop_ro("role",
                   [](const push_pull::Environment& environment) {
                     return std::string(push_pull::to_string(environment.role));
                   })
      .def_prop_ro(
          "timeout",
          [](const push_pull::Environment& environment) {
            return std::chrono::duration<double>(environment.timeout).count();
          },
          "Seconds.");
  nb::class_<push_pull::Scheduler>(module, "PushPullScheduler")
      .def(
          "__init__",
          [](push_pull::Scheduler* place, const push_pull::Environment& environment) {
            with_their_errors([&] {
              const WithoutGil without_gil;
              auto* const scheduler = new (place) push_pull::Scheduler(environment.options);
              try {
                scheduler->wait_for_all(environment.options.deadline);
              } catch (...) {
                scheduler->~Scheduler();
                throw;
              }
            });
          },
          nb::arg("environment"))
      .def("stop", &stop<push_pull::Scheduler>, nb::arg("timeout").none());
  nb::class_<Prepared>(module, "PushPullRequest", "A request that is made once and sent often.");
  bind_worker(module);
  bind_server(module);
  module.def("push_pull_clock", &push_pull::clock_ns, "Nanoseconds, as traces have them.");
}

}  // namespace tensorbus::python
