// The store's server, on a thread of the process that makes one.
#include "base/config.h"
#include "store_arguments.h"
#include "tensorbus/store.h"

namespace nanobind::detail {

template <>
void wrap_destruct<tensorbus::StoreServer>(void* server) noexcept {
  tensorbus::python::destroy_without_gil<tensorbus::StoreServer>(server);
}

}  // namespace nanobind::detail

namespace tensorbus::python {
namespace {

StoreServerOptions server_options(std::string host, std::uint16_t port, std::string journal,
                                  std::optional<std::string> token, bool allow_torch) {
  StoreServerOptions options;
  options.host = std::move(host);
  options.port = port;
  options.journal = std::move(journal);
  options.token = token ? std::move(token) : config::variable("TENSORBUS_TOKEN");
  options.allow_torch = allow_torch;
  return options;
}

}  // namespace

void bind_store_server(nb::module_& module) {
  nb::class_<StoreServerStats>(module, "StoreServerStats", "Counters of a store server.")
      .def_ro("connections", &StoreServerStats::connections, "Open now.")
      .def_ro("accepted", &StoreServerStats::accepted, "Connections accepted so far.")
      .def_ro("requests", &StoreServerStats::requests)
      .def_ro("refused", &StoreServerStats::refused, "Requests that were malformed or too large.")
      .def_ro("keys", &StoreServerStats::keys)
      .def_ro("waits", &StoreServerStats::waits, "Waits and barrier places that are blocked now.")
      .def_ro("revision", &StoreServerStats::revision)
      .def_ro("request_p50_us", &StoreServerStats::request_p50_us, "Time inside the server.")
      .def_ro("request_p99_us", &StoreServerStats::request_p99_us);

  nb::class_<StoreServer>(module, "StoreServer",
                          "A store server on a thread of this process, for our clients and "
                          "torch's.\n\n"
                          "It listens on exactly `host`; `port` 0 picks a free one. With `journal` "
                          "(a path) a restarted server has lost nothing that it acknowledged. With "
                          "a `token` (default: TENSORBUS_TOKEN) clients must prove that they know "
                          "it; torch's cannot, and are admitted only with `allow_torch`.")
      .def(
          "__init__",
          [](StoreServer* self, std::string host, std::uint16_t port, std::string journal,
             std::optional<std::string> token, bool allow_torch) {
            const WithoutGil without_gil;
            new (self) StoreServer(server_options(std::move(host), port, std::move(journal),
                                                  std::move(token), allow_torch));
          },
          nb::arg("host") = "127.0.0.1", nb::arg("port") = 29500, nb::kw_only(),
          nb::arg("journal") = "", nb::arg("token").none() = nb::none(),
          nb::arg("allow_torch") = false)
      .def_prop_ro("port", &StoreServer::port)
      .def_prop_ro("url", &StoreServer::url, "What clients connect to.")
      .def("stats", &StoreServer::stats, Release())
      .def(
          "wait_for_workers",
          [](StoreServer& server, std::size_t count, Timeout timeout) {
            server.wait_for_workers(count, deadline(timeout));
          },
          nb::arg("count"), nb::arg("timeout").none() = nb::none(), Release(),
          "Blocks until `count` clients have joined, ours or torch's.")
      .def("stop", &StoreServer::stop, Release(),
           "Stops accepting, sends what is owed, closes. Twice is fine.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> StoreServer"))
      .def(
          "__exit__",
          [](StoreServer& server, const nb::args&) {
            const WithoutGil without_gil;
            server.stop();
          },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace tensorbus::python
