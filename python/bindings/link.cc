// Links: translation of bus/link/link.h. The package turns state dicts into tensors and their
// forms.
#include <nanobind/stl/map.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <tuple>

#include "bindings.h"
#include "bus/link/link.h"
#include "bus_client.h"
#include "gil.h"
#include "intake.h"
#include "pooled.h"
#include "store_arguments.h"

namespace tensorbus::python {
namespace {

using bus::LinkCall;
using bus::LinkForm;
using Version = std::optional<std::int64_t>;
// A tensor's own: mesh, placements, coordinate, which mesh.
using OwnLayout = std::tuple<Shape, std::vector<Placement>, Shape, std::int64_t>;

// Leaving the queue takes a lock: not with the interpreter.
class Call {
 public:
  explicit Call(std::shared_ptr<LinkCall> call)
      : call_(std::make_unique<std::shared_ptr<LinkCall>>(std::move(call))) {}
  LinkCall& operator*() const { return **call_; }
  LinkCall* operator->() const { return &**this; }

 private:
  Owned<std::shared_ptr<LinkCall>> call_;
};

struct Form {
  std::shared_ptr<const LinkForm> form;
};

void make_form(Form* place, std::vector<std::string> names,
               std::vector<std::optional<Shape>> wholes,
               const std::vector<std::optional<OwnLayout>>& layouts,
               std::vector<std::optional<Shape>> starts) {
  LinkForm form{std::move(names), std::move(wholes), {}, std::move(starts)};
  for (const auto& own : layouts) {
    auto& layout = form.layouts.emplace_back();
    if (!own) continue;
    const auto& [mesh, placements, coordinate, id] = *own;
    layout = bus::SideLayout{mesh, placements, coordinate, id};
  }
  const std::size_t size = form.names.size();
  if (form.wholes.size() != size || form.layouts.size() != size || form.starts.size() != size) {
    throw Error(Code::invalid_argument, "a form has as many of each");
  }
  new (place) Form{std::make_shared<const LinkForm>(std::move(form))};
}

// The views are borrowed from `tensors`; `held` is kept for as long as they are registered.
bus::LinkTensors tensors_of(const Form& form, const TensorList& tensors, nb::object held) {
  if (tensors.size() != form.form->names.size()) {
    throw Error(Code::invalid_argument, "a form of another number of tensors");
  }
  return {form.form, views_of(tensors), keep(std::move(held)), tensors.moments()};
}

class BusLink {
 public:
  BusLink(std::shared_ptr<BusClient> client, bus::LinkSides sides,
          std::optional<bus::Verify> verify)
      : client_(std::move(client)),
        link_(
            std::make_unique<bus::Link>([kept = client_]() -> bus::Client& { return kept->core(); },
                                        process_pool(), std::move(sides), verify)) {}

  bus::Link* operator->() const { return &*link_; }

 private:
  std::shared_ptr<BusClient> client_;
  Owned<bus::Link> link_;
};

void make_link(BusLink* place, nb::object client, std::string local,
               std::optional<std::string> remote, std::int64_t world_size,
               const std::optional<std::string>& verify, bool promises, Version delta_memory,
               std::int64_t verify_every) {
  if (delta_memory.value_or(0) < 0) {
    throw Error(Code::invalid_argument, "delta_memory is negative");
  }
  if (verify_every < 0) throw Error(Code::invalid_argument, "verify_every is negative");
  std::shared_ptr<BusClient> kept = keep_as<BusClient>(std::move(client));
  const WithoutGil without_gil;
  new (place) BusLink(
      std::move(kept),
      {std::move(local), std::move(remote), world_size, promises, delta_memory, verify_every},
      parse_verify(verify));
}

bus::PullPart parse_part(const std::string& name) {
  using enum bus::PullPart;
  for (const bus::PullPart part : {all, fetch, apply}) {
    if (name == to_string(part)) return part;
  }
  throw Error(Code::invalid_argument, "a part of a pull is \"all\", \"fetch\" or \"apply\"");
}

delta::Mode parse_mode(const std::string& name) {
  for (const delta::Mode mode : {delta::Mode::off, delta::Mode::automatic, delta::Mode::always}) {
    if (name == delta::to_string(mode)) return mode;
  }
  throw Error(Code::invalid_argument, "delta is \"auto\", \"off\" or \"always\"");
}

std::int64_t send(BusLink& link, const Call& call, const Form& form, const TensorList& tensors,
                  nb::object held, Version version, Timeout timeout, bool allow_lost,
                  std::int64_t min_readers) {
  const bus::LinkTensors taken = tensors_of(form, tensors, std::move(held));
  const WithoutGil without_gil;
  return link->send(*call, taken, {version, allow_lost, min_readers}, deadline(timeout));
}

std::int64_t recv(BusLink& link, const Call& call, const Form& form, const TensorList& tensors,
                  nb::object held, Version version, Timeout timeout, bool subset) {
  const bus::LinkTensors taken = tensors_of(form, tensors, std::move(held));
  const WithoutGil without_gil;
  return link->recv(*call, taken, {version, subset}, deadline(timeout));
}

std::int64_t publish(BusLink& link, const Call& call, const Form& form, const TensorList& tensors,
                     Version version, std::int64_t keep, const std::optional<std::string>& dtype,
                     double patience, bool withdraw, const std::string& deltas, Timeout timeout) {
  if (!(patience >= 0)) throw Error(Code::invalid_argument, "patience is negative");
  // Beyond that nobody can tell it from waiting for ever.
  constexpr double longest = 1e6;
  const std::chrono::duration<double> seconds(std::min(patience, longest));
  bus::PublishWish wish{
      {version, std::chrono::duration_cast<Duration>(seconds), withdraw, parse_mode(deltas)}, keep};
  if (dtype) wish.dtype = parse_dtype(*dtype);
  const bus::LinkTensors taken = tensors_of(form, tensors, nb::none());
  const WithoutGil without_gil;
  return link->publish(*call, taken, wish, deadline(timeout));
}

std::int64_t pull(BusLink& link, const Call& call, const Form& form, const TensorList& tensors,
                  nb::object held, Version version, Version newer_than, bool together,
                  Timeout timeout, bool subset, bool overwritten, const std::string& part,
                  bool scratch) {
  const bus::LinkTensors taken = tensors_of(form, tensors, std::move(held));
  const WithoutGil without_gil;
  return link->pull(*call, taken,
                    {version, newer_than, together, subset, overwritten, parse_part(part), scratch},
                    deadline(timeout));
}

nb::object last_update(BusLink& link, const std::string& name) {
  const auto last = call_without_gil([&] { return link->last_update(name); });
  if (!last) return nb::none();
  const bus::Update& update = last->update;
  const auto seconds = [](std::int64_t nanoseconds) {
    return static_cast<double>(nanoseconds) * 1e-9;
  };
  return nb::make_tuple(last->version, std::string(delta::to_string(update.why)), update.elements,
                        update.values, update.bytes, seconds(update.asking),
                        seconds(update.fetching), seconds(update.applying),
                        seconds(update.verifying), update.verified);
}

nb::list contents_of(BusLink& link, const std::string& name, Timeout timeout) {
  const std::vector<bus::Content> found =
      call_without_gil([&] { return link->contents(name, deadline(timeout)); });
  nb::list list;
  for (const bus::Content& content : found) {
    list.append(nb::make_tuple(content.name, nb::tuple(nb::cast(content.shape)),
                               std::string(to_string(content.dtype))));
  }
  return list;
}

nb::object last_send(BusLink& link, const std::string& name) {
  const auto sent = call_without_gil([&] { return link->last_send(name); });
  if (!sent) return nb::none();
  return nb::make_tuple(sent->version, readers_of(sent->readers));
}

nb::object give_place(BusLink& link, const std::string& name, const TensorList& tensor,
                      bool torch) {
  const TensorView view = tensor[0];
  auto place = call_without_gil([&] { return link->give_place(name, view); });
  if (!place) return nb::none();
  const PooledTensor pooled{place->memory, place->form.dtype, place->form.shape,
                            place->form.strides};
  return to_python(pooled, torch ? Framework::torch : Framework::numpy);
}

void bind_call(nb::module_& module) {
  nb::class_<Form>(module, "LinkForm", "What tensors hold of the whole; see tensorbus.state_dict.")
      .def("__init__", &make_form, nb::arg("names"), nb::arg("wholes"), nb::arg("layouts"),
           nb::arg("starts"),
           nb::sig("def __init__(self, names: list[str], "
                   "wholes: list[collections.abc.Sequence[int] | None], "
                   "layouts: collections.abc.Sequence[object], "
                   "starts: list[collections.abc.Sequence[int] | None]) -> None"));
  nb::class_<Call>(module, "LinkCall", "One call of a link: its place in the queue.")
      .def(
          "cancel", [](Call& self) { self->running.cancel(); }, Release())
      .def(
          "progress", [](Call& self) { return self->running.progress(); }, Release(),
          "(bytes done, bytes in all)")
      .def(
          "staged", [](Call& self) { return self->staged(); }, Release())
      .def(
          "wait_until_staged",
          [](Call& self, Timeout timeout) { return self->wait_until_staged(deadline(timeout)); },
          nb::arg("timeout").none(), Release(), "False if the time has passed.")
      .def(
          "readers",
          [](Call& self) { return readers_of(call_without_gil([&] { return self->readers(); })); },
          nb::sig("def readers(self) -> dict[int, str]"))
      .def(
          "places", [](Call& self) { return self->places(); }, Release(),
          "Which tensors got a place in a stage, if this call has made one.")
      .def(
          "leave", [](Call& self) { self->leave(); }, Release(),
          "It is over, whether or not it had its turn.");
}

void bind_calls(nb::class_<BusLink>& link) {
  link.def("send", &send, nb::arg("call"), nb::arg("form"), nb::arg("tensors"), nb::arg("held"),
           nb::arg("version").none(), nb::arg("timeout").none(), nb::arg("allow_lost"),
           nb::arg("min_readers"),
           nb::sig("def send(self, call: LinkCall, form: LinkForm, tensors: Tensors, "
                   "held: object, version: int | None, timeout: float | None, "
                   "allow_lost: bool, min_readers: int) -> int"))
      .def("recv", &recv, nb::arg("call"), nb::arg("form"), nb::arg("tensors"), nb::arg("held"),
           nb::arg("version").none(), nb::arg("timeout").none(), nb::arg("subset"),
           nb::sig("def recv(self, call: LinkCall, form: LinkForm, tensors: Tensors, "
                   "held: object, version: int | None, timeout: float | None, "
                   "subset: bool) -> int"))
      .def("publish", &publish, nb::arg("call"), nb::arg("form"), nb::arg("tensors"),
           nb::arg("version").none(), nb::arg("keep"), nb::arg("dtype").none(), nb::arg("patience"),
           nb::arg("withdraw"), nb::arg("delta"), nb::arg("timeout").none(),
           nb::sig("def publish(self, call: LinkCall, form: LinkForm, tensors: Tensors, "
                   "version: int | None, keep: int, dtype: str | None, patience: float, "
                   "withdraw: bool, delta: str, timeout: float | None) -> int"))
      .def("pull", &pull, nb::arg("call"), nb::arg("form"), nb::arg("tensors"), nb::arg("held"),
           nb::arg("version").none(), nb::arg("newer_than").none(), nb::arg("together"),
           nb::arg("timeout").none(), nb::arg("subset"), nb::arg("overwritten"), nb::arg("part"),
           nb::arg("scratch"),
           nb::sig("def pull(self, call: LinkCall, form: LinkForm, tensors: Tensors, "
                   "held: object, version: int | None, newer_than: int | None, "
                   "together: bool, timeout: float | None, subset: bool, "
                   "overwritten: bool, part: str, scratch: bool) -> int"));
}

void bind_questions(nb::class_<BusLink>& link) {
  link.def(
          "newest",
          [](BusLink& self, const std::string& name, Timeout timeout) {
            return self->newest(name, deadline(timeout));
          },
          nb::arg("name"), nb::arg("timeout").none(), Release(), "0 if there is none.")
      .def(
          "versions",
          [](BusLink& self, const std::string& name, Timeout timeout) {
            return self->versions(name, deadline(timeout));
          },
          nb::arg("name"), nb::arg("timeout").none(), Release())
      .def("contents", &contents_of, nb::arg("name"), nb::arg("timeout").none(),
           nb::sig("def contents(self, name: str, timeout: float | None) -> "
                   "list[tuple[str, tuple[int, ...], str]]"),
           "(name, shape, dtype) of whole tensors; waits for the first version.")
      .def("last_send", &last_send, nb::arg("name"),
           nb::sig("def last_send(self, name: str) -> tuple[int, dict[int, str]] | None"),
           "(version, readers)")
      .def("last_update", &last_update, nb::arg("name"),
           nb::sig("def last_update(self, name: str) -> "
                   "tuple[int, str, int, int, int, float, float, float, float, bool] | None"),
           "(version, why, elements, values, patch bytes, seconds to ask, to fetch, to apply, to "
           "verify, whether it was)")
      .def(
          "registration",
          [](BusLink& self, const std::string& name, bool sends) {
            return self->registration({name, direction(sends)});
          },
          nb::arg("name"), nb::arg("send"), Release(), "0 if there is none.")
      .def(
          "is_busy",
          [](BusLink& self, const std::string& name, bool sends) {
            return self->is_busy({name, direction(sends)});
          },
          nb::arg("name"), nb::arg("send"), Release(), "Whether a call has its turn.")
      .def("give_place", &give_place, nb::arg("name"), nb::arg("tensor"), nb::arg("torch"),
           nb::sig("def give_place(self, name: str, tensor: Tensors, torch: bool) -> object"),
           "A tensor's place in the stage, with its contents; None if it has none.");
}

}  // namespace

void bind_link(nb::module_& module) {
  bind_call(module);
  nb::class_<BusLink> link(module, "BusLink", "See tensorbus.Link.");
  link.def("__init__", &make_link, nb::arg("client"), nb::arg("local"), nb::arg("remote").none(),
           nb::arg("world_size"), nb::arg("verify").none(), nb::arg("promises"),
           nb::arg("delta_memory").none(), nb::arg("verify_every"),
           nb::sig("def __init__(self, client: BusClient, local: str, remote: str | None, "
                   "world_size: int, verify: str | None, promises: bool, "
                   "delta_memory: int | None, verify_every: int) -> None"))
      .def(
          "begin",
          [](BusLink& self, std::string name, bool sends, bool shelf) {
            return Call(self->begin({std::move(name), direction(sends), shelf}));
          },
          nb::arg("name"), nb::arg("send"), nb::arg("shelf"), Release(),
          "Takes the next place in the queue of a name.")
      .def(
          "take_turn",
          [](BusLink&, const Call& call, Timeout timeout) {
            bus::take_turn(*call, deadline(timeout));
          },
          nb::arg("call"), nb::arg("timeout").none(), Release(),
          "For callers that have something to do in their turn before the call.")
      .def(
          "refuse",
          [](BusLink& self, const Call& call, const std::string& why, Timeout timeout) {
            self->refuse(*call, why, deadline(timeout));
          },
          nb::arg("call"), nb::arg("why"), nb::arg("timeout").none(), Release(),
          "Tells the others that this rank has nothing that can be moved.")
      .def(
          "close", [](BusLink& self, Timeout timeout) { self->close(deadline(timeout)); },
          nb::arg("timeout").none(), Release());
  bind_calls(link);
  bind_questions(link);
}

}  // namespace tensorbus::python
