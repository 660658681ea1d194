// The rendezvous store: translation of tensorbus/store.h. The package's kvstore modules put the
// seed's signatures on top.
#include "tensorbus/store.h"

#include "base/config.h"
#include "store/torch/pool.h"
#include "store_arguments.h"

namespace nanobind::detail {

using tensorbus::python::destroy_without_gil;

template <>
void wrap_destruct<tensorbus::Store>(void* store) noexcept {
  destroy_without_gil<tensorbus::Store>(store);
}
template <>
void wrap_destruct<tensorbus::Watch>(void* watch) noexcept {
  destroy_without_gil<tensorbus::Watch>(watch);
}

}  // namespace nanobind::detail

namespace tensorbus::python {
namespace {

nb::object to_optional_bytes(const std::optional<std::string>& value) {
  return value ? nb::object(to_bytes(*value)) : nb::none();
}

nb::list to_local_keys(const KeyScope& scope, const std::vector<std::string>& full_keys) {
  nb::list keys;
  for (const std::string& key : full_keys) keys.append(to_str(scope.local(key)));
  return keys;
}

std::vector<std::string> full_keys(const KeyScope& scope, const std::vector<KeyArgument>& keys) {
  std::vector<std::string> full;
  full.reserve(keys.size());
  for (const KeyArgument& key : keys) full.push_back(scope.full(key.text()));
  return full;
}

std::optional<std::string> value_of(const std::optional<ValueArgument>& value) {
  return value ? std::optional(value->bytes()) : std::nullopt;
}

std::vector<std::optional<std::string>> get(Store& store, const std::vector<std::string>& keys,
                                            Timeout timeout) {
  const WithoutGil without_gil;
  return store.get(keys, deadline(timeout));
}

void set(Store& store, const std::vector<Entry>& entries, Timeout timeout, Lease* lease) {
  const WithoutGil without_gil;
  store.set(entries, deadline(timeout), lease);
}

WaitResult wait(Store& store, const Condition& condition, Timeout timeout,
                Cancellation* cancellation) {
  const WithoutGil without_gil;
  return store.wait(condition, deadline(timeout), cancellation);
}

// Python's last reference ends it without the interpreter.
std::shared_ptr<Lease> ended_without_gil(std::shared_ptr<Lease> lease) {
  Lease* const inside = lease.get();
  return {inside, [lease = std::move(lease)](Lease*) mutable {
            const WithoutGilIfHeld without_gil;
            lease.reset();
          }};
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
          [](Watch& watch, const KeyScope& scope, Timeout timeout, Cancellation* cancellation) {
            StoreEvent event;
            {
              const WithoutGil without_gil;
              event = watch.next(deadline(timeout), cancellation);
            }
            const bool put = event.kind == StoreEvent::Kind::put;
            return nb::make_tuple(put, to_str(scope.local(event.key)),
                                  put ? nb::object(to_bytes(event.value)) : nb::none(),
                                  event.revision);
          },
          nb::arg("scope"), nb::arg("timeout").none() = nb::none(),
          nb::arg("cancellation").none() = nb::none(),
          nb::sig("def next(self, scope: KeyScope, timeout: float | None = None, cancellation: "
                  "Cancellation | None = None) -> tuple[bool, str, bytes | None, int]"),
          "(is a put, key, value, revision) of the next change.")
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

// Keys and values are nullable so that None comes as far as the conversion, which names it.
void bind_store_class(nb::module_& module) {
  nb::class_<Capabilities>(module, "Capabilities", "What a backend can do beyond what all can.")
      .def_ro("leases", &Capabilities::leases)
      .def_ro("watches", &Capabilities::watches)
      .def_ro("server_waits", &Capabilities::server_waits,
              "Waits are woken by the server, and patterns need no candidate keys.")
      .def_ro("exactly_once", &Capabilities::exactly_once,
              "A change sent again after a reconnect applies once.")
      .def_ro("max_value_size", &Capabilities::max_value_size);

  nb::class_<Store>(module, "Store", "A store of the C++ core; use tensorbus.kvstore.")
      .def_prop_ro("url", &Store::url)
      .def("capabilities", &Store::capabilities)
      .def(
          "set",
          [](Store& store, const KeyScope& scope, const KeyArgument& key,
             const ValueArgument& value, Timeout timeout, Lease* lease) {
            set(store, {{scope.full(key.text()), value.bytes()}}, timeout, lease);
          },
          nb::arg("scope"), nb::arg("key").none(), nb::arg("value").none(),
          nb::arg("timeout").none(), nb::arg("lease").none() = nb::none())
      .def(
          "multi_set",
          [](Store& store, const KeyScope& scope,
             const std::vector<std::pair<KeyArgument, ValueArgument>>& values, Timeout timeout,
             Lease* lease) {
            std::vector<Entry> entries;
            entries.reserve(values.size());
            for (const auto& [key, value] : values) {
              entries.push_back({scope.full(key.text()), value.bytes()});
            }
            set(store, entries, timeout, lease);
          },
          nb::arg("scope"), nb::arg("values"), nb::arg("timeout").none(),
          nb::arg("lease").none() = nb::none())
      .def(
          "get",
          [](Store& store, const KeyScope& scope, const KeyArgument& key, Timeout timeout) {
            return to_optional_bytes(get(store, {scope.full(key.text())}, timeout).front());
          },
          nb::arg("scope"), nb::arg("key").none(), nb::arg("timeout").none(),
          nb::sig(
              "def get(self, scope: KeyScope, key: str, timeout: float | None) -> bytes | None"))
      .def(
          "multi_get",
          [](Store& store, const KeyScope& scope, const std::vector<KeyArgument>& keys,
             Timeout timeout) {
            nb::list values;
            for (const auto& value : get(store, full_keys(scope, keys), timeout)) {
              values.append(to_optional_bytes(value));
            }
            return values;
          },
          nb::arg("scope"), nb::arg("keys"), nb::arg("timeout").none(),
          nb::sig(
              "def multi_get(self, scope: KeyScope, keys: Sequence[str], timeout: float | None) "
              "-> list[bytes | None]"))
      .def(
          "exists",
          [](Store& store, const KeyScope& scope, const KeyArgument& key, Timeout timeout) {
            const std::string full_key = scope.full(key.text());
            const WithoutGil without_gil;
            return store.exists(full_key, deadline(timeout));
          },
          nb::arg("scope"), nb::arg("key").none(), nb::arg("timeout").none())
      .def(
          "erase",
          [](Store& store, const KeyScope& scope, const KeyArgument& key, Timeout timeout) {
            const std::string full_key = scope.full(key.text());
            const WithoutGil without_gil;
            return store.erase(full_key, deadline(timeout));
          },
          nb::arg("scope"), nb::arg("key").none(), nb::arg("timeout").none())
      .def(
          "add",
          [](Store& store, const KeyScope& scope, const KeyArgument& key, std::int64_t amount,
             Timeout timeout) {
            const std::string full_key = scope.full(key.text());
            const WithoutGil without_gil;
            return store.add(full_key, amount, deadline(timeout));
          },
          nb::arg("scope"), nb::arg("key").none(), nb::arg("amount"), nb::arg("timeout").none())
      .def(
          "compare_and_set",
          [](Store& store, const KeyScope& scope, const KeyArgument& key,
             const std::optional<ValueArgument>& expected, const ValueArgument& desired,
             Timeout timeout) {
            const std::string full_key = scope.full(key.text());
            const std::optional<std::string> wanted = value_of(expected);
            const std::string value = desired.bytes();
            Swap swap;
            {
              const WithoutGil without_gil;
              swap = store.compare_and_set(full_key, wanted, value, deadline(timeout));
            }
            return nb::make_tuple(swap.swapped, to_optional_bytes(swap.value));
          },
          nb::arg("scope"), nb::arg("key").none(), nb::arg("expected").none(),
          nb::arg("desired").none(), nb::arg("timeout").none(),
          nb::sig("def compare_and_set(self, scope: KeyScope, key: str, expected: str | bytes | "
                  "bytearray | memoryview | None, desired: str | bytes | bytearray | memoryview, "
                  "timeout: float | None) -> tuple[bool, bytes | None]"))
      .def(
          "list_keys",
          [](Store& store, const KeyScope& scope, const KeyArgument& prefix, Timeout timeout) {
            const std::string full_prefix = scope.full(prefix.text());
            std::vector<std::string> keys;
            {
              const WithoutGil without_gil;
              keys = store.list(full_prefix, deadline(timeout));
            }
            return to_local_keys(scope, keys);
          },
          nb::arg("scope"), nb::arg("prefix").none(), nb::arg("timeout").none(),
          nb::sig("def list_keys(self, scope: KeyScope, prefix: str, timeout: float | None) -> "
                  "list[str]"))
      .def(
          "wait_for_key",
          [](Store& store, const KeyScope& scope, const KeyArgument& key, Timeout timeout,
             Cancellation* cancellation) {
            const Condition condition{scope.full(key.text()), false, 1, std::nullopt, {}};
            return to_bytes(wait(store, condition, timeout, cancellation).value);
          },
          nb::arg("scope"), nb::arg("key").none(), nb::arg("timeout").none(),
          nb::arg("cancellation").none() = nb::none())
      .def(
          "wait_for_value",
          [](Store& store, const KeyScope& scope, const KeyArgument& key,
             const ValueArgument& value, Timeout timeout, Cancellation* cancellation) {
            const Condition condition{scope.full(key.text()), false, 1, value.bytes(), {}};
            return to_bytes(wait(store, condition, timeout, cancellation).value);
          },
          nb::arg("scope"), nb::arg("key").none(), nb::arg("value").none(),
          nb::arg("timeout").none(), nb::arg("cancellation").none() = nb::none())
      .def(
          "wait_for_keys",
          [](Store& store, const KeyScope& scope, const KeyArgument& pattern, std::size_t count,
             const std::optional<ValueArgument>& value, const std::vector<KeyArgument>& candidates,
             Timeout timeout, Cancellation* cancellation) {
            const Condition condition{scope.full_pattern(pattern.text()), true, count,
                                      value_of(value), full_keys(scope, candidates)};
            return to_local_keys(scope, wait(store, condition, timeout, cancellation).keys);
          },
          nb::arg("scope"), nb::arg("pattern").none(), nb::arg("count"), nb::arg("value").none(),
          nb::arg("candidates"), nb::arg("timeout").none(),
          nb::arg("cancellation").none() = nb::none(),
          nb::sig(
              "def wait_for_keys(self, scope: KeyScope, pattern: str, count: int, value: str | "
              "bytes | bytearray | memoryview | None, candidates: Sequence[str], timeout: float "
              "| None, cancellation: Cancellation | None = None) -> list[str]"))
      .def(
          "barrier",
          [](Store& store, const KeyScope& scope, const KeyArgument& name, std::size_t count,
             const KeyArgument& member, Timeout timeout, Cancellation* cancellation) {
            const std::string full_name = scope.full(name.text());
            const std::string who = member.text();
            const WithoutGil without_gil;
            store.barrier(full_name, count, who, deadline(timeout), cancellation);
          },
          nb::arg("scope"), nb::arg("name").none(), nb::arg("count"), nb::arg("member"),
          nb::arg("timeout").none(), nb::arg("cancellation").none() = nb::none())
      .def(
          "watch",
          [](Store& store, const KeyScope& scope, const KeyArgument& prefix, bool current,
             Timeout timeout) {
            const std::string full_prefix = scope.full(prefix.text());
            const WithoutGil without_gil;
            return store.watch(full_prefix, current, deadline(timeout));
          },
          nb::arg("scope"), nb::arg("prefix").none(), nb::arg("current"), nb::arg("timeout").none(),
          nb::keep_alive<0, 1>())
      .def(
          "lease",
          [](Store& store, double time_to_live, bool keep_alive, Timeout timeout) {
            if (!(time_to_live > 0) || time_to_live > 1e6) {
              throw Error(Code::invalid_argument,
                          "a lease's time to live must be a positive number "
                          "of seconds");
            }
            return ended_without_gil(store.lease(
                std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time_to_live)),
                {keep_alive}, deadline(timeout)));
          },
          nb::arg("time_to_live"), nb::arg("keep_alive"), nb::arg("timeout").none(),
          nb::keep_alive<0, 1>(), Release())
      .def(
          "join", [](Store& store, Timeout timeout) { store.join(deadline(timeout)); },
          nb::arg("timeout").none(), Release())
      .def("close", &Store::close, nb::arg("cleanup"), Release());
}

}  // namespace

void bind_store(nb::module_& module) {
  bind_watch_and_lease(module);
  bind_store_class(module);

  nb::class_<KeyScope>(module, "KeyScope", "Full names of keys: namespace/component/key.")
      .def(nb::init<std::string, std::string>(), nb::arg("namespace"), nb::arg("component"));

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
  module.attr("POLL_INTERVAL") =
      std::chrono::duration<double>(store::Backoff::shortest_pause).count();
  module.def("variable", &config::variable, nb::arg("name"),
             "An environment variable; None if it is not set or empty.");
}

}  // namespace tensorbus::python
