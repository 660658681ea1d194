// Translation of tensorbus/endpoint.h; the package's endpoint module is what users see.
#include "tensorbus/endpoint.h"

#include <poll.h>

#include <unordered_map>
#include <utility>

#include "bindings.h"
#include "fabric/core/pool.h"
#include "gil.h"
#include "intake.h"
#include "os/process/fork.h"
#include "pooled.h"
#include "store_arguments.h"
#include "tensorbus/secret.h"

namespace tensorbus::python {
namespace {

std::string from_bytes(const nb::bytes& value) { return {value.c_str(), value.size()}; }
std::string name_of(const char* what, std::size_t index) {
  return std::string(what) + " " + std::to_string(index);
}

// A read with the Python objects that it fills; those of frozen tensors are made when it is over.
class Read {
 public:
  Read(ReadOperation operation, nb::list results)
      : operation_(std::move(operation)), results_(std::move(results)) {}
  Read(ReadOperation operation, Framework framework)
      : operation_(std::move(operation)), framework_(framework) {}
  Read(Read&&) = default;
  ~Read() {
    if (here_.owned) settle();
  }

  nb::list wait(Timeout timeout) {
    {
      const WithoutGil without_gil;
      operation_.wait(deadline(timeout));
    }
    if (!results_.is_valid()) results_ = received();
    return results_;
  }
  // Cancels it and returns when nothing is written any more: within the time of a few chunks.
  void settle() const noexcept {
    if (os::fork_generation() != generation_) return;
    const WithoutGil without_gil;
    if (operation_.done()) return;
    operation_.cancel();
    pollfd descriptor{operation_.fd(), POLLIN, 0};
    while (!operation_.done()) ::poll(&descriptor, 1, -1);
  }
  const ReadOperation& operation() const noexcept { return operation_; }

 private:
  // False once it was moved elsewhere.
  struct Here {
    bool owned = true;
    Here() = default;
    Here(Here&& other) noexcept : owned(std::exchange(other.owned, false)) {}
  };

  nb::list received() const {
    const std::shared_ptr<const Received> tensors =
        call_without_gil([this] { return operation_.received(); });
    nb::list list;
    for (std::size_t i = 0; i < tensors->forms.size(); ++i) {
      std::byte* const data = tensors->tensors[i];
      const TensorForm& form = tensors->forms[i];
      list.append(
          to_python({data == nullptr ? nullptr : std::shared_ptr<std::byte>(tensors->memory, data),
                     form.dtype, form.shape, form.strides},
                    framework_));
    }
    return list;
  }

  Here here_;
  ReadOperation operation_;
  nb::list results_ = nb::steal<nb::list>(nb::handle());
  Framework framework_ = Framework::torch;
  unsigned generation_ = os::fork_generation();
};

class PythonEndpoint {
 public:
  explicit PythonEndpoint(EndpointOptions options)
      : endpoint_(std::make_unique<Endpoint>(std::move(options))) {}
  ~PythonEndpoint() {
    close();
    const WithoutGil without_gil;
    endpoint_.reset();
  }

  nb::bytes expose(nb::handle tensors, bool frozen, nb::handle stream) {
    const nb::list kept(tensors);
    const TensorList list =
        take_in_with_devices(kept, stream, [](std::size_t i) { return name_of("tensor", i); });
    std::string descriptor;
    {
      const WithoutGil without_gil;
      // Readers find the descriptor at once, and know no stream of this process.
      device::wait_until_passed(list.moments(), Deadline::never());
      const std::vector<TensorView> views = views_of(list);
      descriptor = frozen ? endpoint_->expose_frozen(views) : endpoint_->expose(views);
    }
    exposed_[descriptor] = kept;
    return to_bytes(descriptor);
  }

  bool release(const nb::bytes& bytes) {
    const std::string descriptor = from_bytes(bytes);
    bool there = false;
    {
      const WithoutGil without_gil;
      there = endpoint_->release(descriptor);
    }
    // Taken out first: the end of a Python object may come back to this one.
    const auto let_go = exposed_.extract(descriptor);
    return there;
  }

  using Parts = std::vector<std::pair<std::size_t, Shape>>;  // tensors and where parts begin
  Read read(const nb::bytes& bytes, const nb::object& into, bool torch, Timeout timeout,
            const std::optional<Parts>& parts, nb::handle stream) {
    const std::string descriptor = from_bytes(bytes);
    const Deadline latest = deadline(timeout);
    if (into.is_none()) {
      return read_anew(descriptor, torch ? Framework::torch : Framework::numpy, latest);
    }
    nb::list results(into);
    const TensorList list =
        take_in_with_devices(results, stream, [](std::size_t i) { return name_of("target", i); });
    const WithoutGil without_gil;
    device::wait_until_passed(list.moments(), latest);
    if (!parts) return {endpoint_->read(descriptor, views_of(list), latest), std::move(results)};
    std::vector<Endpoint::Part> boxes;
    for (const auto& [tensor, start] : *parts) boxes.push_back({tensor, start});
    return {endpoint_->read(descriptor, views_of(list), boxes, latest), std::move(results)};
  }

  EndpointStats stats() const {
    const WithoutGil without_gil;
    return endpoint_->stats();
  }

  void close() {
    {
      const WithoutGil without_gil;
      endpoint_->close();
    }
    const auto let_go = std::exchange(exposed_, {});
  }

 private:
  Read read_anew(const std::string& descriptor, Framework framework, Deadline latest) {
    const Endpoint::Description description = Endpoint::describe(descriptor);
    if (description.frozen) {
      const WithoutGil without_gil;
      return {endpoint_->read_frozen(descriptor, latest), framework};
    }
    std::vector<PooledTensor> tensors;
    {
      const WithoutGil without_gil;
      tensors = allocate(*process_pool(), description.tensors);
    }
    nb::list results;
    std::vector<TensorView> views;
    for (const PooledTensor& tensor : tensors) {
      results.append(to_python(tensor, framework));
      views.push_back(tensor.view());
    }
    const WithoutGil without_gil;
    return {endpoint_->read(descriptor, views, latest), std::move(results)};
  }

  std::unique_ptr<Endpoint> endpoint_;
  std::unordered_map<std::string, nb::object> exposed_;  // what must live until it is released
};

nb::list describe(const nb::bytes& descriptor) {
  nb::list tensors;
  for (const TensorForm& form : Endpoint::describe(from_bytes(descriptor)).tensors) {
    tensors.append(
        nb::make_tuple(std::string(to_string(form.dtype)), nb::tuple(nb::cast(form.shape))));
  }
  return tensors;
}

nb::dict to_dict(const EndpointStats& stats) {
  nb::dict paths;
  for (const auto& [name, path] : stats.paths) {
    nb::dict counts;
    counts["reads"] = path.reads;
    counts["bytes"] = path.bytes;
    paths[name.c_str()] = counts;
  }
  nb::dict all;
  all["paths"] = paths;
  all["failed_reads"] = stats.failed_reads;
  all["exposures"] = stats.exposures;
  all["connections"] = stats.connections;
  return all;
}

}  // namespace

void bind_endpoint(nb::module_& module) {
  nb::class_<Read>(module, "Read")
      .def(
          "done", [](const Read& read) { return read.operation().done(); }, Release())
      .def("wait", &Read::wait, nb::arg("timeout").none() = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None) -> list[object]"))
      .def(
          "cancel", [](const Read& read) { read.operation().cancel(); }, Release())
      .def("settle", &Read::settle)
      .def(
          "fileno", [](const Read& read) { return read.operation().fd(); }, Release())
      .def_prop_ro(
          "path", [](const Read& read) { return read.operation().path(); }, Release());

  nb::class_<PythonEndpoint>(module, "Endpoint")
      .def(
          "__init__",
          [](PythonEndpoint* place, std::string name, const std::optional<nb::bytes>& secret,
             bool secret_in_descriptors, std::string bind, std::uint16_t first_port,
             std::uint16_t last_port, std::optional<std::string> metrics) {
            EndpointOptions options;
            options.name = std::move(name);
            if (secret) options.secret = from_bytes(*secret);
            options.secret_in_descriptors = secret_in_descriptors;
            options.bind = std::move(bind);
            options.first_port = first_port;
            options.last_port = last_port;
            options.metrics = std::move(metrics);
            const WithoutGil without_gil;
            options.pool = process_pool();
            new (place) PythonEndpoint(std::move(options));
          },
          nb::arg("name"), nb::arg("secret").none(), nb::arg("secret_in_descriptors"),
          nb::arg("bind"), nb::arg("first_port"), nb::arg("last_port"),
          nb::arg("metrics").none() = nb::none(),
          nb::sig("def __init__(self, name: str, secret: bytes | None, secret_in_descriptors: "
                  "bool, bind: str, first_port: int, last_port: int, "
                  "metrics: str | None = None) -> None"))
      .def("expose", &PythonEndpoint::expose, nb::arg("tensors"), nb::arg("frozen"),
           nb::arg("stream").none(),
           nb::sig("def expose(self, tensors: Sequence[object], frozen: bool, stream: object) "
                   "-> bytes"))
      .def("release", &PythonEndpoint::release, nb::arg("descriptor"))
      .def("read", &PythonEndpoint::read, nb::arg("descriptor"), nb::arg("into").none(),
           nb::arg("torch"), nb::arg("timeout").none(), nb::arg("parts").none(),
           nb::arg("stream").none(),
           nb::sig("def read(self, descriptor: bytes, into: Sequence[object] | None, torch: bool, "
                   "timeout: float | None, parts: Sequence[tuple[int, Sequence[int]]] | None, "
                   "stream: object) -> Read"))
      .def(
          "stats", [](const PythonEndpoint& endpoint) { return to_dict(endpoint.stats()); },
          nb::sig("def stats(self) -> dict[str, object]"))
      .def("close", &PythonEndpoint::close);

  module.def("describe", &describe, nb::arg("descriptor"),
             nb::sig("def describe(descriptor: bytes) -> list[tuple[str, tuple[int, ...]]]"),
             "(dtype, shape) of every tensor that a descriptor describes.");
  module.def(
      "shared_secret",
      [](Store& store, const KeyScope& scope, const std::string& key, Timeout timeout) {
        std::string secret;
        {
          const WithoutGil without_gil;
          secret = shared_secret(store, scope.full(key), deadline(timeout));
        }
        return to_bytes(secret);
      },
      nb::arg("store"), nb::arg("scope"), nb::arg("key"), nb::arg("timeout").none(),
      "The secret that all clients of a store share under this key.");
}

}  // namespace tensorbus::python
