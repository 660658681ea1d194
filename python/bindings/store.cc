// The rendezvous store: translation of tensorbus/store.h. The package's kvstore modules put the
// seed's signatures on top.
#include "tensorbus/store.h"

#include "base/config.h"
#include "bindings.h"

namespace tensorbus::python {
namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;
using Timeout = std::optional<double>;

Deadline deadline(Timeout timeout) {
  return timeout ? Deadline::after_seconds(*timeout) : Deadline::never();
}

nb::object to_bytes(const std::optional<std::string>& value) {
  if (!value) return nb::none();
  return nb::bytes(value->data(), value->size());
}

// Keys of other programs need not be UTF-8.
nb::object to_str(std::string_view key) {
  return nb::steal(
      PyUnicode_DecodeUTF8(key.data(), static_cast<Py_ssize_t>(key.size()), "surrogateescape"));
}

nb::list to_strs(const std::vector<std::string>& keys) {
  nb::list list;
  for (const std::string& key : keys) list.append(to_str(key));
  return list;
}

std::string from_bytes(const nb::bytes& value) { return {value.c_str(), value.size()}; }

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

ConnectOptions connect_options(Timeout timeout, std::optional<std::string> token) {
  ConnectOptions options;
  options.deadline = deadline(timeout);
  options.token = std::move(token);
  return options;
}

void bind_watch_and_lease(nb::module_& module) {
  nb::class_<Cancellation>(module, "Cancellation", "Ends a blocked call from another thread.")
      .def(nb::init<>())
      .def("cancel", &Cancellation::cancel, Release())
      .def_prop_ro("cancelled", &Cancellation::cancelled);

  nb::class_<Watch>(module, "Watch")
      .def(
          "next",
          [](Watch& watch, Timeout timeout, Cancellation* cancellation) {
            StoreEvent event;
            {
              const nb::gil_scoped_release release;
              event = watch.next(deadline(timeout), cancellation);
            }
            const bool put = event.kind == StoreEvent::Kind::put;
            return nb::make_tuple(put, to_str(event.key), put ? to_bytes(event.value) : nb::none(),
                                  event.revision);
          },
          nb::arg("timeout").none() = nb::none(), nb::arg("cancellation").none() = nb::none(),
          nb::sig(
              "def next(self, timeout: float | None = None, cancellation: Cancellation | None = "
              "None) -> tuple[bool, str, bytes | None, int]"),
          "(is a put, full key, value, revision) of the next change.")
      .def("close", &Watch::close, Release());

  nb::class_<Lease>(module, "Lease")
      .def_prop_ro("alive", &Lease::alive, Release())
      .def_prop_ro("time_to_live",
                   [](const Lease& lease) {
                     return std::chrono::duration<double>(lease.time_to_live()).count();
                   })
      .def(
          "refresh", [](Lease& lease, Timeout timeout) { lease.refresh(deadline(timeout)); },
          nb::arg("timeout").none(), Release())
      .def(
          "revoke", [](Lease& lease, Timeout timeout) { lease.revoke(deadline(timeout)); },
          nb::arg("timeout").none(), Release());
}

void bind_store_class(nb::module_& module) {
  nb::class_<Capabilities>(module, "Capabilities", "What a backend can do beyond what all can.")
      .def_ro("leases", &Capabilities::leases)
      .def_ro("watches", &Capabilities::watches)
      .def_ro("server_waits", &Capabilities::server_waits,
              "Waits are woken by the server, and patterns need no candidate keys.")
      .def_ro("exactly_once", &Capabilities::exactly_once,
              "A change sent again after a reconnect applies once.")
      .def_ro("max_value_size", &Capabilities::max_value_size);

  nb::class_<Store>(module, "Store", "A store by full keys; use tensorbus.kvstore.")
      .def_prop_ro("url", &Store::url)
      .def("capabilities", &Store::capabilities)
      .def(
          "set",
          [](Store& store, const std::vector<std::pair<std::string, nb::bytes>>& entries,
             Timeout timeout, Lease* lease) {
            std::vector<Entry> copied;
            copied.reserve(entries.size());
            for (const auto& [key, value] : entries) copied.push_back({key, from_bytes(value)});
            const nb::gil_scoped_release release;
            store.set(copied, deadline(timeout), lease);
          },
          nb::arg("entries"), nb::arg("timeout").none(), nb::arg("lease").none() = nb::none())
      .def(
          "get",
          [](Store& store, const std::vector<std::string>& keys, Timeout timeout) {
            std::vector<std::optional<std::string>> values;
            {
              const nb::gil_scoped_release release;
              values = store.get(keys, deadline(timeout));
            }
            nb::list list;
            for (const auto& value : values) list.append(to_bytes(value));
            return list;
          },
          nb::arg("keys"), nb::arg("timeout").none(),
          nb::sig(
              "def get(self, keys: Sequence[str], timeout: float | None) -> list[bytes | None]"))
      .def(
          "exists",
          [](Store& store, const std::string& key, Timeout timeout) {
            return store.exists(key, deadline(timeout));
          },
          nb::arg("key"), nb::arg("timeout").none(), Release())
      .def(
          "erase",
          [](Store& store, const std::string& key, Timeout timeout) {
            return store.erase(key, deadline(timeout));
          },
          nb::arg("key"), nb::arg("timeout").none(), Release())
      .def(
          "add",
          [](Store& store, const std::string& key, std::int64_t amount, Timeout timeout) {
            return store.add(key, amount, deadline(timeout));
          },
          nb::arg("key"), nb::arg("amount"), nb::arg("timeout").none(), Release())
      .def(
          "compare_and_set",
          [](Store& store, const std::string& key, const std::optional<nb::bytes>& expected,
             const nb::bytes& desired, Timeout timeout) {
            const auto wanted = expected ? std::optional(from_bytes(*expected)) : std::nullopt;
            const std::string value = from_bytes(desired);
            Swap swap;
            {
              const nb::gil_scoped_release release;
              swap = store.compare_and_set(key, wanted, value, deadline(timeout));
            }
            return nb::make_tuple(swap.swapped, to_bytes(swap.value));
          },
          nb::arg("key"), nb::arg("expected").none(), nb::arg("desired"), nb::arg("timeout").none(),
          nb::sig("def compare_and_set(self, key: str, expected: bytes | None, desired: bytes, "
                  "timeout: float | None) -> tuple[bool, bytes | None]"))
      .def(
          "list_keys",
          [](Store& store, const std::string& prefix, Timeout timeout) {
            std::vector<std::string> keys;
            {
              const nb::gil_scoped_release release;
              keys = store.list(prefix, deadline(timeout));
            }
            return to_strs(keys);
          },
          nb::arg("prefix"), nb::arg("timeout").none(),
          nb::sig("def list_keys(self, prefix: str, timeout: float | None) -> list[str]"))
      .def(
          "wait",
          [](Store& store, std::string key, bool is_pattern, std::size_t count,
             const std::optional<nb::bytes>& value, std::vector<std::string> candidates,
             Timeout timeout, Cancellation* cancellation) {
            Condition condition{std::move(key), is_pattern, count, std::nullopt,
                                std::move(candidates)};
            if (value) condition.value = from_bytes(*value);
            WaitResult result;
            {
              const nb::gil_scoped_release release;
              result = store.wait(condition, deadline(timeout), cancellation);
            }
            return nb::make_tuple(to_strs(result.keys), to_bytes(result.value));
          },
          nb::arg("key"), nb::arg("is_pattern"), nb::arg("count"), nb::arg("value").none(),
          nb::arg("candidates"), nb::arg("timeout").none(),
          nb::arg("cancellation").none() = nb::none(),
          nb::sig("def wait(self, key: str, is_pattern: bool, count: int, value: bytes | None, "
                  "candidates: Sequence[str], timeout: float | None, cancellation: Cancellation | "
                  "None = None) -> tuple[list[str], bytes]"))
      .def(
          "barrier",
          [](Store& store, const std::string& name, std::size_t count, const std::string& member,
             Timeout timeout, Cancellation* cancellation) {
            store.barrier(name, count, member, deadline(timeout), cancellation);
          },
          nb::arg("name"), nb::arg("count"), nb::arg("member"), nb::arg("timeout").none(),
          nb::arg("cancellation").none() = nb::none(), Release())
      .def(
          "watch",
          [](Store& store, const std::string& prefix, bool current, Timeout timeout) {
            return store.watch(prefix, current, deadline(timeout));
          },
          nb::arg("prefix"), nb::arg("current"), nb::arg("timeout").none(), nb::keep_alive<0, 1>(),
          Release())
      .def(
          "lease",
          [](Store& store, double time_to_live, bool keep_alive, Timeout timeout) {
            if (!(time_to_live > 0) || time_to_live > 1e6) {
              throw Error(Code::invalid_argument,
                          "a lease's time to live must be a positive number "
                          "of seconds");
            }
            return store.lease(
                std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time_to_live)),
                {keep_alive}, deadline(timeout));
          },
          nb::arg("time_to_live"), nb::arg("keep_alive"), nb::arg("timeout").none(),
          nb::keep_alive<0, 1>(), Release())
      .def(
          "join", [](Store& store, Timeout timeout) { store.join(deadline(timeout)); },
          nb::arg("timeout").none(), Release())
      .def("close", &Store::close, nb::arg("cleanup"), Release());
}

void bind_server(nb::module_& module) {
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
            const nb::gil_scoped_release release;
            server.stop();
          },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace

void bind_store(nb::module_& module) {
  bind_watch_and_lease(module);
  bind_store_class(module);
  bind_server(module);

  nb::class_<KeyScope>(module, "KeyScope", "Full names of keys: namespace/component/key.")
      .def(nb::init<std::string, std::string>(), nb::arg("namespace"), nb::arg("component"))
      .def("full", &KeyScope::full, nb::arg("key"))
      .def("full_pattern", &KeyScope::full_pattern, nb::arg("pattern"))
      .def(
          "local",
          [](const KeyScope& scope, const std::string& key) { return to_str(scope.local(key)); },
          nb::arg("full_key"), nb::sig("def local(self, full_key: str) -> str"))
      .def_prop_ro("prefix", &KeyScope::prefix);

  nb::class_<StoreUrl>(module, "StoreUrl", "A parsed store URL.")
      .def_static("parse", &StoreUrl::parse, nb::arg("url"))
      .def("namespace_or", &StoreUrl::space_or, nb::arg("given"),
           "The URL's namespace, else the given one; ValueError if they contradict each other.")
      .def("__str__", &StoreUrl::to_string);

  module.def(
      "connect",
      [](const StoreUrl& url, Timeout timeout, std::optional<std::string> token) {
        return connect(url, connect_options(timeout, std::move(token)));
      },
      nb::arg("url"), nb::arg("timeout").none(), nb::arg("token").none() = nb::none(), Release());
  module.def(
      "connect_tcp",
      [](std::string host, std::uint16_t port, Timeout timeout) {
        return connect_tcp({std::move(host), port}, connect_options(timeout, std::nullopt));
      },
      nb::arg("host"), nb::arg("port"), nb::arg("timeout").none(), Release(),
      "Our protocol if the server speaks it, else torch's.");
  module.def("variable", &config::variable, nb::arg("name"),
             "An environment variable; None if it is not set or empty.");
}

}  // namespace tensorbus::python
