#include "bus/link/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/refuse.h"
#include "base/waiting.h"

namespace tensorbus::bus {
namespace {

// How long an agent may take to accept what the others should know, before the caller is told.
constexpr Duration telling_time = std::chrono::seconds(1);
constexpr std::size_t longest_reason = 4000;

std::uint64_t registration_of(LinkName& name) {
  const Lock lock(name.mutex);
  return name.registration;
}

std::uint64_t take_registration(LinkName& name) {
  const Lock lock(name.mutex);
  return std::exchange(name.registration, 0);
}

void note_send(LinkCall& call, const Outcome& outcome) {
  call.note_readers(outcome.readers);
  const Lock lock(call.name->mutex);
  call.name->last_send = LastSend{outcome.version, outcome.readers};
}

void note_update(LinkName& name, const Outcome& outcome, PullPart part) {
  const bool patched = outcome.update && outcome.update->why == delta::Why::patch;
  if (part != PullPart::fetch) {
    name.unverified = patched && !outcome.update->verified ? name.unverified + 1 : 0;
  }
  const Lock lock(name.mutex);
  name.last_update.reset();
  if (outcome.update) name.last_update = LastUpdate{outcome.version, *outcome.update};
}

bool only_lost(const Outcome& outcome) {
  return outcome.status.code == Code::peer_lost && !outcome.stale &&
         std::ranges::none_of(outcome.readers, [](const auto& reader) {
           return reader.second == ReaderOutcome::failed;
         });
}

// However a call ends, the next one has its turn.
class Leaving {
 public:
  explicit Leaving(LinkCall& call) : call_(call) {}
  ~Leaving() { call_.leave(); }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

 private:
  LinkCall& call_;
};

// What is on a device moves without deltas.
bool on_device(const LinkTensors& tensors) {
  return std::ranges::any_of(tensors.views, &TensorView::on_device);
}

// What `work` returns once it is the turn of the call.
template <typename Work>
auto in_turn(LinkCall& call, Deadline deadline, Work work) {
  take_turn(call, deadline);
  const os::Interruptible interruptible(call.running.waits());
  // A stage without a registration is of no use: the memory of the stage goes back.
  struct Tidying {
    LinkName& name;
    ~Tidying() {
      if (registration_of(name) == 0) name.stage = nullptr;
    }
  } const tidying{*call.name};
  try {
    return work();
  } catch (const Error&) {
    // Closing the link takes the registration away under a call that was about to use it.
    if (const char* why = call.running.ended_early()) throw Error(Code::cancelled, why);
    throw;
  }
}

}  // namespace

LinkCall::LinkCall(LinkKey called, std::shared_ptr<LinkName> under)
    : key(std::move(called)), name(std::move(under)), turn_(name->turns) {}

void LinkCall::leave() noexcept {
  turn_.leave();
  stage();
}

bool LinkCall::wait_until_staged(Deadline deadline) {
  Lock lock(mutex_);
  return tensorbus::wait(lock, changed_, deadline, [&]() REQUIRES(mutex_) { return staged_; });
}

bool LinkCall::staged() const {
  const Lock lock(mutex_);
  return staged_;
}

void LinkCall::stage() noexcept {
  const Lock lock(mutex_);
  staged_ = true;
  changed_.notify_all();
}

std::map<Rank, ReaderOutcome> LinkCall::readers() const {
  const Lock lock(mutex_);
  return readers_;
}

void LinkCall::note_readers(const std::map<Rank, ReaderOutcome>& readers) {
  const Lock lock(mutex_);
  readers_ = readers;
}

std::optional<std::vector<std::size_t>> LinkCall::places() const {
  const Lock lock(mutex_);
  return places_;
}

void LinkCall::note_places(std::vector<std::size_t> places) {
  const Lock lock(mutex_);
  places_ = std::move(places);
}

void take_turn(LinkCall& call, Deadline deadline) {
  const os::Interruptible interruptible(call.running.waits());
  if (call.take_turn(deadline)) return;
  const bool sends = call.key.direction == Direction::send;
  throw Error(Code::timeout,
              fmt::format("another thread is {} \"{}\" over this link and has not ended in time",
                          sends ? "sending" : "receiving", call.key.name));
}

Link::Link(std::function<Client&()> client, std::shared_ptr<fabric::Pool> pool, LinkSides sides,
           std::optional<Verify> verify)
    : client_(std::move(client)),
      pool_(std::move(pool)),
      sides_(std::move(sides)),
      verify_(verify) {}

Link::~Link() {
  const Lock lock(mutex_);
  for (const auto& [key, name] : names_) drop(key, *name, false);
}

std::shared_ptr<LinkCall> Link::begin(LinkKey key) {
  client_();  // in a forked child, where the threads that wait are not, this throws
  sender(key);
  const auto name = name_of(key);
  auto call = std::make_shared<LinkCall>(std::move(key), name);
  const Lock lock(mutex_);
  std::erase_if(calls_, [](const auto& each) { return each.expired(); });
  calls_.push_back(call);
  return call;
}

std::shared_ptr<LinkName> Link::name_of(const LinkKey& key) {
  const Lock lock(mutex_);
  auto& name = names_[key];
  if (name == nullptr) name = std::make_shared<LinkName>();
  return name;
}

std::shared_ptr<LinkName> Link::find(const LinkKey& key) {
  const Lock lock(mutex_);
  const auto found = names_.find(key);
  return found == names_.end() ? nullptr : found->second;
}

const std::string& Link::sender(const LinkKey& key) const {
  const bool sends = key.direction == Direction::send;
  if (!sides_.remote && !(sends && key.shelf)) {
    tensorbus::refuse(
        fmt::format("link \"{}\" names no other side; give it a remote_name", sides_.local));
  }
  return sends ? sides_.local : *sides_.remote;
}

std::string Link::pair_of(const LinkKey& key) const {
  return key.shelf ? fmt::format("shelves of {}", sender(key)) : sender(key);
}

// By the sender's name: whoever else receives from it finds the same one.
std::string Link::batch_of(const LinkKey& key) const {
  return fmt::format("{}{}/{}", key.shelf ? "shelf of " : "", sender(key), key.name);
}

void Link::join_pair(const LinkKey& key, bool blocking, Deadline deadline) {
  const std::string pair = pair_of(key);
  {
    const Lock lock(mutex_);
    if (pairs_.contains(pair)) return;
  }
  // A rank that publishes waits for no reader, and a rank that reads a shelf need not find the
  // worker of the shelf.
  const bool publishes = key.shelf && key.direction == Direction::send;
  client_().init_pair(
      {pair, sides_.local, publishes ? "" : sides_.remote.value_or(""), sides_.world_size,
       SideLayout{{sides_.world_size}, {Replicate{}}, {}}, key.shelf},
      blocking, deadline);
  if (!blocking) return;
  const Lock lock(mutex_);
  pairs_.insert(pair);
}

// The stage goes back to the system before another is made.
void Link::unregister(LinkCall& call, Deadline deadline) {
  LinkName& name = *call.name;
  name.form = {};
  const bool had_stage = name.stage != nullptr;
  name.stage = nullptr;
  if (const std::uint64_t before = take_registration(name); before != 0) {
    client_().close_batch({batch_of(call.key), before, true}, true, deadline);
  }
  if (had_stage) pool_->trim();
}

void Link::enlist(LinkCall& call, const LinkTensors& tensors, RegisteredForm form,
                  Deadline deadline) {
  const LinkKey& key = call.key;
  LinkName& name = *call.name;
  const bool sends = key.direction == Direction::send;
  join_pair(key, true, deadline);
  unregister(call, deadline);
  RegisterOptions options;
  options.role = sides_.local;
  options.verify = key.shelf ? Verify::off : verify_;
  options.pairs = {pair_of(key)};
  options.versioned = Versioned{key.direction, name.last, form.subset,
                                key.shelf ? std::optional(form.keep) : std::nullopt, form.delta};
  options.shelf_dtype = form.dtype;
  options.owner = sends && key.shelf ? nullptr : tensors.owner;
  std::vector<bool> staged(tensors.views.size());
  if (sends && !key.shelf) staged = outside_of(*pool_, tensors.views);
  std::vector<BatchTensor> items;
  for (std::size_t i = 0; i < tensors.views.size(); ++i) {
    items.push_back({tensors.views[i], options.pairs.front(), tensors.form->names[i],
                     tensors.form->wholes[i], tensors.form->layouts[i], tensors.form->starts[i],
                     staged[i]});
  }
  const std::uint64_t made = client_().register_tensors(batch_of(key), items, options, deadline);
  name.form = registered_form(tensors, std::move(form));
  const bool in_place = std::ranges::find(staged, true) == staged.end();
  if (sends && !key.shelf && in_place) {
    name.stage = std::make_unique<Stage>(tensors.views, std::span<const Dtype>(), *pool_);
    call.note_places({});
  }
  const Lock lock(name.mutex);
  name.registration = made;
}

// Readers may have come since the last send, or left, and want other types.
void Link::prepare_stage(LinkCall& call, const LinkTensors& tensors, std::int64_t min_readers,
                         Deadline deadline) {
  const LinkName& name = *call.name;
  while (true) {
    std::vector<Dtype> types;
    if (name.stage == nullptr || name.stage->can_be_narrowed(tensors.views)) {
      types = client_().stage_types({batch_of(call.key), sides_.local, min_readers}, deadline);
    }
    if (name.stage != nullptr && name.stage->has(tensors.views, types, *pool_)) return;
    if (name.stage != nullptr) drop_stage(call, tensors, deadline);
    if (make_stage(call, tensors, types, deadline)) return;
  }
}

bool Link::make_stage(LinkCall& call, const LinkTensors& tensors, std::span<const Dtype> types,
                      Deadline deadline) {
  auto stage = std::make_unique<Stage>(tensors.views, types, *pool_);
  using Owners = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  const auto owners = std::make_shared<Owners>(tensors.owner, stage->memory());
  if (!client_().lend_stage(batch_of(call.key), sides_.local, stage->placed(tensors.views),
                            outside_of(*pool_, tensors.views), deadline, owners)) {
    return false;
  }
  call.note_places(stage->indices());
  call.name->stage = std::move(stage);
  return true;
}

// The stage goes back to the system before another is made.
void Link::drop_stage(LinkCall& call, const LinkTensors& tensors, Deadline deadline) {
  const std::vector<bool> staged = outside_of(*pool_, tensors.views);
  std::vector<TensorView> views = tensors.views;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (staged[i]) views[i] = no_tensor();
  }
  // First: a call that ends at its deadline may be carried out later.
  call.name->stage = nullptr;
  client_().lend_stage(batch_of(call.key), sides_.local, views, staged, deadline, tensors.owner);
  pool_->trim();
}

void Link::enlist_or_replace(LinkCall& call, const LinkTensors& tensors, const RegisteredForm& form,
                             Deadline deadline) {
  const bool registered = registration_of(*call.name) != 0;
  if (!registered || !call.name->form.fits(tensors, form)) {
    return enlist(call, tensors, form, deadline);
  }
  Client& client = client_();
  const std::string batch = batch_of(call.key);
  if (client.moved(batch, sides_.local, tensors.views).empty()) return;
  client.replace(batch, sides_.local, tensors.views, deadline, tensors.owner);
}

std::int64_t Link::send(LinkCall& call, const LinkTensors& tensors, const SendWish& wish,
                        Deadline deadline) {
  const Leaving leaving(call);
  if (wish.min_readers < 0) tensorbus::refuse("min_readers is negative");
  return in_turn(call, deadline, [&] {
    if (registration_of(*call.name) == 0 || !call.name->form.fits(tensors, {})) {
      enlist(call, tensors, {}, deadline);
    }
    try {
      return call.name->last = transfer(call, tensors, wish, deadline);
    } catch (const CommandError& error) {
      const Outcome& outcome = error.outcome();
      if (outcome.version != 0) note_send(call, outcome);
      drop_if_stale(call, error);
      if (!wish.allow_lost || !only_lost(outcome)) throw;
      return call.name->last = outcome.version;
    }
  });
}

std::int64_t Link::transfer(LinkCall& call, const LinkTensors& tensors, const SendWish& wish,
                            Deadline deadline) {
  prepare_stage(call, tensors, wish.min_readers, deadline);
  Stage& stage = *call.name->stage;
  device::wait_until_passed(tensors.moments, deadline);
  stage.fill(tensors.views, client_().crew(), client_().copiers(), deadline);
  // What lies in the pool is read where it is, until all have read.
  if (stage.size() == tensors.views.size()) call.stage();
  const auto state = client_().transfer(batch_of(call.key), Direction::send, sides_.local,
                                        stage.placed(tensors.views), true, deadline, wish.version,
                                        wish.min_readers, &call.running);
  const Outcome& outcome = state->wait(Deadline::never());
  note_send(call, outcome);
  return outcome.version;
}

std::int64_t Link::recv(LinkCall& call, const LinkTensors& tensors, const RecvWish& wish,
                        Deadline deadline) {
  const Leaving leaving(call);
  return in_turn(call, deadline, [&] {
    RegisteredForm form;
    form.subset = wish.subset;
    enlist_or_replace(call, tensors, form, deadline);
    device::wait_until_passed(tensors.moments, deadline);
    const auto state =
        client_().transfer(batch_of(call.key), Direction::recv, sides_.local, tensors.views, true,
                           deadline, wish.version, 0, &call.running);
    return call.name->last = state->wait(Deadline::never()).version;
  });
}

std::int64_t Link::publish(LinkCall& call, const LinkTensors& tensors, const PublishWish& wish,
                           Deadline deadline) {
  const Leaving leaving(call);
  if (verify_.value_or(Verify::off) != Verify::off)
    tensorbus::refuse("verify is for what is sent and received, not for what is published");
  if (wish.keep < 2) {
    tensorbus::refuse(fmt::format("keep is {}; a shelf keeps at least 2 versions", wish.keep));
  }
  return in_turn(call, deadline, [&] {
    RegisteredForm form;
    form.keep = wish.keep;
    form.dtype = wish.dtype;
    form.delta = wish.options.deltas != delta::Mode::off && !on_device(tensors);
    PublishOptions options = wish.options;
    options.delta_memory = sides_.delta_memory;
    if (registration_of(*call.name) == 0 || !call.name->form.fits(tensors, form)) {
      enlist(call, tensors, form, deadline);
    }
    device::wait_until_passed(tensors.moments, deadline);
    try {
      return call.name->last = client_().publish(batch_of(call.key), sides_.local, tensors.views,
                                                 options, deadline);
    } catch (const CommandError& error) {
      drop_if_stale(call, error);
      throw;
    }
  });
}

Verify Link::verify_of_next(const LinkName& name) const noexcept {
  if (sides_.verify_every == 0 || name.unverified + 1 < sides_.verify_every) return Verify::off;
  const Verify wanted = verify_.value_or(Verify::off);
  return wanted == Verify::off ? Verify::full : wanted;
}

std::int64_t Link::pull(LinkCall& call, const LinkTensors& tensors, const PullWish& wish,
                        Deadline deadline) {
  const Leaving leaving(call);
  if (wish.version && wish.newer_than) tensorbus::refuse("version and newer_than are both given");
  if (verify_.value_or(Verify::off) != Verify::off && sides_.verify_every == 0)
    tensorbus::refuse("verify is for what is sent and received, not for what is published");
  if (wish.part != PullPart::all && on_device(tensors))
    tensorbus::refuse("fetch() and apply() are for tensors in memory of the host: use pull()");
  return in_turn(call, deadline, [&] {
    RegisteredForm form;
    form.subset = wish.subset;
    form.delta = sides_.promises && !on_device(tensors);
    enlist_or_replace(call, tensors, form, deadline);
    device::wait_until_passed(tensors.moments, deadline);
    try {
      const auto state =
          client_().pull({batch_of(call.key), sides_.local, wish.version, wish.newer_than,
                          wish.together, wish.overwritten, wish.part, wish.scratch,
                          on_device(tensors) ? Verify::off : verify_of_next(*call.name)},
                         tensors.views, true, deadline, &call.running);
      const Outcome& outcome = state->wait(Deadline::never());
      note_update(*call.name, outcome, wish.part);
      if (wish.part == PullPart::fetch) return outcome.version;
      return call.name->last = outcome.version;
    } catch (const Error& error) {
      // What is published now does not fit: the next call looks anew.
      if (error.code() == Code::invalid_argument) unregister(call, deadline);
      throw;
    }
  });
}

void Link::refuse(LinkCall& call, const std::string& why, Deadline deadline) {
  const Leaving leaving(call);
  in_turn(call, deadline, [&] {
    drop(call.key, *call.name, true);
    try {
      const Deadline soon = Deadline::after(telling_time);
      join_pair(call.key, false, soon);
      client_().refuse(batch_of(call.key), sides_.local, pair_of(call.key), {call.key.direction, 0},
                       why.substr(0, longest_reason), soon);
    } catch (const Error& error) {  // its caller is told something more important
      log::debug("the others were not told about \"{}\": {}", call.key.name, error.what());
    }
  });
}

void Link::drop(const LinkKey& key, LinkName& name, bool back_soon) noexcept try {
  if (const std::uint64_t before = take_registration(name); before != 0) {
    client_().drop_batch({batch_of(key), before, back_soon});
  }
} catch (const Error&) {
  // The client is closed, and with it all that it had registered.
}

// Another sender is gone: the next call begins anew, together with the others.
void Link::drop_if_stale(LinkCall& call, const CommandError& error) noexcept {
  if (error.outcome().stale) drop(call.key, *call.name, true);
}

std::optional<LinkKey> Link::registered_of(const LinkKey& first, const LinkKey& second) {
  for (const LinkKey& key : {first, second}) {
    if (registration(key) != 0) return key;
  }
  return std::nullopt;
}

std::int64_t Link::newest(const std::string& name, Deadline deadline) {
  const auto key = registered_of({name, Direction::send, true}, {name, Direction::recv, true});
  if (!key) {
    tensorbus::refuse(fmt::format("\"{}\" was neither published nor pulled over this link", name));
  }
  return client_().newest({batch_of(*key), sides_.local}, deadline);
}

Versions Link::versions(const std::string& name, Deadline deadline) {
  const auto key = registered_of({name, Direction::send}, {name, Direction::recv});
  if (!key)
    tensorbus::refuse(fmt::format("\"{}\" was neither sent nor received over this link", name));
  return client_().versions({batch_of(*key), sides_.local}, deadline);
}

std::vector<Content> Link::contents(const std::string& name, Deadline deadline) {
  const Direction direction = sides_.remote ? Direction::recv : Direction::send;
  return client_().contents(batch_of({name, direction, true}), deadline);
}

std::optional<LastSend> Link::last_send(const std::string& name) {
  const auto found = find({name, Direction::send});
  if (found == nullptr) return std::nullopt;
  const Lock lock(found->mutex);
  return found->last_send;
}

std::optional<LastUpdate> Link::last_update(const std::string& name) {
  const auto found = find({name, Direction::recv, true});
  if (found == nullptr) return std::nullopt;
  const Lock lock(found->mutex);
  return found->last_update;
}

std::uint64_t Link::registration(const LinkKey& key) {
  const auto found = find(key);
  return found == nullptr ? 0 : registration_of(*found);
}

bool Link::is_busy(const LinkKey& key) {
  const auto found = find(key);
  return found != nullptr && found->turns->taken();
}

std::optional<PooledPlace> Link::give_place(const std::string& name, const TensorView& tensor) {
  const auto found = find({name, Direction::send});
  if (found == nullptr) return std::nullopt;
  const Turn turn(found->turns);
  if (!turn.is_next() || found->stage == nullptr) return std::nullopt;
  return found->stage->give(tensor);
}

void Link::close(Deadline deadline) {
  std::map<LinkKey, std::shared_ptr<LinkName>> names;
  {
    const Lock lock(mutex_);
    for (const auto& weak : calls_) {
      if (const auto call = weak.lock()) call->running.cancel_waits("the link was closed");
    }
    names = names_;
  }
  for (const auto& [key, name] : names) {
    if (const std::uint64_t before = take_registration(*name); before != 0) {
      client_().close_batch({batch_of(key), before}, true, deadline);
    }
    // A call that has its turn now gives the stage back itself.
    const Turn turn(name->turns);
    if (turn.is_next()) name->stage = nullptr;
  }
}

}  // namespace tensorbus::bus
