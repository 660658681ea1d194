#include "endpoint/core.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace tensorbus::endpoint {
namespace {

constexpr Duration connecting_time = std::chrono::seconds(10);
// Regions of one peer whose tables are kept for the next read.
constexpr std::size_t most_attached = 1024;
// Lists of boxes that one region serves: readers make them, and they take the owner's memory.
constexpr std::size_t most_streams = 4096;

}  // namespace

Core::Core(std::unique_ptr<fabric::Station> station, std::string descriptor_secret,
           Counters& counters)
    : descriptor_secret_(std::move(descriptor_secret)),
      counters_(counters),
      station_(std::move(station)) {}

Core::~Core() {
  exposures_.clear();
  owners_.clear();
  station_.reset();
  // Only now nobody touches their targets.
  for (auto& [id, read] : reads_) {
    read.state->finish({Code::cancelled, read.state->what + ": the endpoint was closed"});
  }
}

std::string Core::expose(std::span<const TensorView> tensors) { return expose(tensors, false); }

std::string Core::expose_frozen(std::span<const TensorView> tensors,
                                std::vector<std::shared_ptr<void>> memory) {
  std::string descriptor = expose(tensors, true);
  ledger_.lend(exposures_.rbegin()->first, std::move(memory));
  return descriptor;
}

std::string Core::expose(std::span<const TensorView> tensors, bool frozen) {
  fabric::Descriptor descriptor;
  descriptor.frozen = frozen;
  descriptor.owner = station_->address().identity;
  descriptor.secret = descriptor_secret_;
  auto region = station_->expose(tensors);
  for (const fabric::Address& address : station_->addresses()) {
    descriptor.ways.push_back({address.kind, address.where, region->number()});
  }
  descriptor.forms = region->forms();
  std::string bytes = encode(descriptor);
  const std::uint64_t number = region->number();
  exposures_[number].region = std::move(region);
  counters_.exposures.set(exposures_.size());
  return bytes;
}

bool Core::release(const fabric::Descriptor& descriptor) {
  if (descriptor.owner != station_->address().identity) {
    throw Error(Code::invalid_argument,
                "this descriptor was made by another endpoint, of " + to_string(descriptor.owner));
  }
  const bool there = exposures_.erase(descriptor.ways.front().region) > 0;
  ledger_.take_back(descriptor.ways.front().region);
  counters_.exposures.set(exposures_.size());
  return there;
}

void Core::start(fabric::OpId id, PendingRead pending) {
  Running& read = reads_[id];
  static_cast<PendingRead&>(read) = std::move(pending);
  try {
    read.owner = owner_of(read);
    if (read.owner->up) proceed(id, read);
  } catch (...) {
    finish(id, current_exception_status());
  }
}

void Core::call(Owner& owner) {
  owner.peer = station_->connect(owner.route, owner.secret, Deadline(now() + connecting_time));
}

void Core::forget(const Owner& owner) {
  owners_.erase(owner.identity.id);
  counters_.connections.set(owners_.size());
}

Core::OwnerPtr Core::owner_of(const PendingRead& read) {
  const fabric::Descriptor& descriptor = read.descriptor;
  if (const auto found = owners_.find(descriptor.owner.id); found != owners_.end()) {
    const OwnerPtr& owner = found->second;
    if (owner->identity != descriptor.owner) {
      throw Error(Code::invalid_argument,
                  "the descriptor names another process than the one that has its id, " +
                      to_string(owner->identity));
    }
    if (owner->secret != read.secret) {
      throw Error(Code::denied, "the descriptor's secret is not its owner's");
    }
    return owner;
  }
  auto owner = std::make_shared<Owner>();
  owner->identity = descriptor.owner;
  owner->secret = read.secret;
  owner->route = station_->route_to(addresses(descriptor));
  if (owner->route.way() == nullptr) {
    throw Error(Code::unreachable, "no fabric reaches it: " + owner->route.explain());
  }
  call(*owner);
  owners_[descriptor.owner.id] = owner;
  counters_.connections.set(owners_.size());
  return owner;
}

// Another user's process, say, does not share its memory but may be reached over the network.
void Core::try_next(const OwnerPtr& owner, Status refusal) {
  const Code code = refusal.code;
  owner->route.refuse(std::move(refusal));
  while (code == Code::denied && owner->route.way() != nullptr) {
    try {
      return call(*owner);
    } catch (...) {
      owner->route.refuse(current_exception_status());
    }
  }
  forget(*owner);
  const Status status{code, owner->route.explain()};
  for (const fabric::OpId id : waiting_for(owner)) finish(id, status);
}

void Core::proceed(fabric::OpId id, Running& read) {
  if (read.let_go && read.owner->route.way()->kind != "shm") give_up_aliasing(read);
  const auto& attached = read.owner->attached;
  if (const auto known = attached.find(read.number()); known != attached.end()) {
    read.region = known->second;
    return begin_reading(id, read);
  }
  read.stage = Running::Stage::attaching;
  station_->attach(*read.owner->peer, read.number(), id, read.deadline);
}

void Core::begin_reading(fabric::OpId id, Running& read) {
  if (read.region->forms() != read.descriptor.forms) {
    throw Error(Code::invalid_argument,
                "the descriptor does not describe what its owner exposes; it was changed on its "
                "way");
  }
  if (read.let_go) {
    // The owner must know before this process looks: from the owner's answer on this process may
    // look at the memory.
    read.stage = Running::Stage::holding;
    return send(read.owner->peer, AliasMessage{AliasMessage::Kind::hold, read.number(),
                                               static_cast<std::uint64_t>(id)});
  }
  if (read.must_ask()) {
    read.stage = Running::Stage::asking;
    return send(read.owner->peer,
                PartsWanted{static_cast<std::uint64_t>(id), read.number(), *read.boxes});
  }
  read.stage = Running::Stage::reading;
  read.began_at = now();
  read.state->set_path(path_to(read.targets, *read.region));
  fabric::Read request;
  request.stream = read.stream;
  request.stream_number = read.stream_number;
  request.sources = {{read.owner->peer, read.region, read.descriptor.ticket}};
  request.targets = read.targets;
  station_->read(std::move(request), id, read.deadline);
}

void Core::give_up_aliasing(Running& read) {
  read.let_go = nullptr;
  read.copy_instead(read);
}

void Core::on_held(fabric::OpId id, Running& read) {
  // Whatever happens now, the owner hears when nobody looks at it any more.
  std::shared_ptr<void> hold(nullptr, [let_go = read.let_go](void*) { let_go(); });
  std::optional<fabric::Alias> alias = read.region->alias();
  if (!alias) {
    give_up_aliasing(read);
    return begin_reading(id, read);
  }
  auto received = std::make_shared<Received>();
  received->forms = read.descriptor.forms;
  received->tensors = std::move(alias->tensors);
  using Parts = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;  // unmapped, then let go
  received->memory = std::make_shared<Parts>(std::move(hold), std::move(alias->memory));
  read.state->set_received(std::move(received));
  read.state->set_path("alias");
  finish(id, {});
}

void Core::let_go(const Id16& owner, std::uint64_t region) {
  const auto found = owners_.find(owner);
  if (found == owners_.end() || !found->second->up) return;  // it is gone, or sees us go
  send(found->second->peer, AliasMessage{AliasMessage::Kind::let_go, region});
}

void Core::send(const std::shared_ptr<fabric::Peer>& peer, const EndpointMessage& message) {
  outbox_.push_back({peer, encode(message)});
  send_what_waits();
}

void Core::send_what_waits() {
  std::vector<Outgoing> rest;
  for (Outgoing& each : outbox_) {
    try {
      station_->send(*each.peer, std::as_bytes(std::span(each.bytes)));
    } catch (const Error& error) {
      if (error.code() == Code::queue_full) rest.push_back(std::move(each));
    }
  }
  outbox_ = std::move(rest);
}

void Core::cancel(fabric::OpId id) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return;
  if (found->second.waits_here()) {
    return finish(id, {Code::cancelled, "it was cancelled"});
  }
  station_->cancel(id);
}

void Core::finish(fabric::OpId id, Status status) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return;
  const Running read = std::move(found->second);
  reads_.erase(found);
  const std::string taken = read.state->taken_path();
  record(read, status.code, taken);
  if (status.ok()) {
    for (Counters::Path& path : counters_.paths) {
      if (path.name != taken) continue;
      path.reads.add();
      path.bytes.add(read.bytes);
    }
  } else {
    counters_.failed_reads.add();
    status.message = read.state->what + ": " + status.message;
    log::debug("{}", status.message);
  }
  read.state->finish(std::move(status));
}

void Core::record(const Running& read, Code code, const std::string& path) {
  observe::Span span;
  span.work = observe::Work::read;
  span.code = code;
  span.begin = read.asked_at.time_since_epoch().count();
  span.end = now().time_since_epoch().count();
  span.bytes = static_cast<std::int64_t>(read.bytes);
  const TimePoint began_at =
      read.began_at == TimePoint{} ? TimePoint(Duration(span.end)) : read.began_at;
  span.in(observe::Phase::wait) = (began_at - read.asked_at).count();
  span.in(observe::Phase::read) = span.end - began_at.time_since_epoch().count();
  span.pid = static_cast<std::int32_t>(read.descriptor.owner.pid);
  span.name = observe::ShortText<56>(read.descriptor.owner.name);
  if (code == Code::ok) counters_.recorder.add_bytes(path, span.bytes);
  counters_.recorder.finish(span);
}

bool Core::poll() {
  const std::span<const fabric::Event> events = station_->poll();
  for (const fabric::Event& event : events) {
    std::visit([this](const auto& each) { on(each); }, event);
  }
  if (!outbox_.empty()) send_what_waits();
  ledger_.look();
  expire_waiting();
  return !events.empty();
}

void Core::on(const fabric::Completion& completion) {
  const auto found = reads_.find(completion.id);
  if (found == reads_.end()) return;
  Running& read = found->second;
  if (!completion.status.ok() || read.stage == Running::Stage::reading) {
    if (completion.status.code == Code::withdrawn) {
      read.owner->attached.erase(read.number());
    }
    // Known when the bytes have come.
    if (read.region != nullptr && read.region->path_to_device() == "device window") {
      read.state->set_path(path_to(read.targets, *read.region));
    }
    return finish(completion.id, completion.status);
  }
  auto& attached = read.owner->attached;
  attached[read.number()] = completion.region;
  // The lowest number is the oldest.
  if (attached.size() > most_attached) attached.erase(attached.begin());
  try {
    read.region = completion.region;
    begin_reading(completion.id, read);
  } catch (...) {
    finish(completion.id, current_exception_status());
  }
}

void Core::on(const fabric::Message& message) {
  try {
    const EndpointMessage told = decode_message(message.bytes);
    std::visit([&](const auto& each) { on(message.from, each); }, told);
  } catch (const Error& error) {
    log::warn("{} sent {}", to_string(message.from->identity()), error.what());
    station_->disconnect(*message.from);
  }
}

void Core::on(const std::shared_ptr<fabric::Peer>& from, const AliasMessage& message) {
  using Kind = AliasMessage::Kind;
  if (message.kind == Kind::let_go) return ledger_.let_go(from->identity(), message.region);
  if (message.kind == Kind::hold) {
    return send(from, AliasMessage{ledger_.hold(from->identity(), message.region), message.region,
                                   message.read});
  }
  const auto waits = reads_.find(fabric::OpId{message.read});
  if (waits == reads_.end()) {  // cancelled meanwhile
    if (message.kind == Kind::held) send(from, AliasMessage{Kind::let_go, message.region});
    return;
  }
  const fabric::OpId id = waits->first;
  Running& read = waits->second;
  if (read.stage != Running::Stage::holding || read.owner->peer != from) return;
  if (message.kind == Kind::gone) return taken_back(id, read);
  try {
    if (message.kind == Kind::held) return on_held(id, read);
    give_up_aliasing(read);
    begin_reading(id, read);
  } catch (...) {
    finish(id, current_exception_status());
  }
}

void Core::taken_back(fabric::OpId id, const Running& read) {
  read.owner->attached.erase(read.number());
  finish(id, {Code::withdrawn, to_string(read.owner->identity) + " took its memory back"});
}

void Core::on(const std::shared_ptr<fabric::Peer>& from, const PartsWanted& wanted) {
  send(from, serve(wanted));
}

// Boxes that lead outside are thrown: the reader has seen the forms and lies.
PartsServed Core::serve(const PartsWanted& wanted) {
  const auto found = exposures_.find(wanted.region);
  if (found == exposures_.end()) return {wanted.read, PartsServed::Kind::gone, 0};
  auto& [region, streams] = found->second;
  const std::string list = encode(PartsWanted{0, 0, wanted.boxes});
  if (const auto known = streams.find(list); known != streams.end()) {
    return {wanted.read, PartsServed::Kind::served, known->second};
  }
  if (streams.size() >= most_streams) return {wanted.read, PartsServed::Kind::full, 0};
  const std::uint64_t number = streams.size() + 1;
  region->serve(number, fabric::box_stream(region->forms(), wanted.boxes));
  streams.emplace(list, number);
  return {wanted.read, PartsServed::Kind::served, number};
}

void Core::on(const std::shared_ptr<fabric::Peer>& from, const PartsServed& served) {
  const auto found = reads_.find(fabric::OpId{served.read});
  if (found == reads_.end()) return;  // cancelled meanwhile
  const fabric::OpId id = found->first;
  Running& read = found->second;
  if (read.stage != Running::Stage::asking || read.owner->peer != from) return;
  if (served.kind == PartsServed::Kind::gone) return taken_back(id, read);
  if (served.kind == PartsServed::Kind::full || served.stream == 0) {
    return finish(id, {Code::queue_full,
                       "it serves as many lists of parts of these tensors as it "
                       "may; expose them anew, or read the same parts"});
  }
  read.stream_number = served.stream;
  try {
    begin_reading(id, read);
  } catch (...) {
    finish(id, current_exception_status());
  }
}

Core::OwnerPtr Core::owner_of(const fabric::Peer& peer) const {
  for (const auto& [id, owner] : owners_) {
    if (owner->peer.get() == &peer) return owner;
  }
  return nullptr;
}

std::vector<fabric::OpId> Core::waiting_for(const OwnerPtr& owner) const {
  std::vector<fabric::OpId> ids;
  for (const auto& [id, read] : reads_) {
    if (read.owner == owner && read.stage == Running::Stage::connecting) ids.push_back(id);
  }
  return ids;
}

void Core::on(const fabric::PeerUp& up) {
  const OwnerPtr owner = owner_of(*up.peer);
  if (owner == nullptr) return;  // one that reads from us
  owner->up = true;
  log::debug("{} is read through {}", to_string(owner->identity), owner->route.way()->kind);
  for (const fabric::OpId id : waiting_for(owner)) {
    try {
      proceed(id, reads_.at(id));
    } catch (...) {
      finish(id, current_exception_status());
    }
  }
}

void Core::on(const fabric::PeerLost& lost) {
  std::erase_if(outbox_, [&](const Outgoing& each) { return each.peer == lost.peer; });
  ledger_.lost(lost.peer->identity());
  const OwnerPtr owner = owner_of(*lost.peer);
  if (owner == nullptr) return;
  if (!owner->up) return try_next(owner, lost.reason);
  forget(*owner);
  std::vector<fabric::OpId> over;
  for (const auto& [id, read] : reads_) {
    if (read.owner == owner && read.waits_here()) over.push_back(id);
  }
  for (const fabric::OpId id : over) finish(id, lost.reason);
}

void Core::expire_waiting() {
  std::vector<fabric::OpId> late;
  for (const auto& [id, read] : reads_) {
    if (read.waits_here() && read.deadline.expired()) late.push_back(id);
  }
  const Status status{Code::timeout, "it did not answer before the deadline"};
  for (const fabric::OpId id : late) finish(id, status);
}

bool Core::arm() { return outbox_.empty() && station_->arm(); }

TimePoint Core::wake_at() const noexcept {
  TimePoint first = station_->wake_at();
  for (const auto& [id, read] : reads_) first = std::min(first, read.deadline.at());
  return first;
}

std::vector<int> Core::descriptors() const {
  std::vector<int> fds = ledger_.descriptors();
  fds.push_back(station_->fd());
  return fds;
}

}  // namespace tensorbus::endpoint
