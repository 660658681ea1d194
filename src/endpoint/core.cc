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
  exposures_.emplace(region->number(), std::move(region));
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
    return send(read.owner->peer, {AliasMessage::Kind::hold, read.number()});
  }
  read.stage = Running::Stage::reading;
  read.state->set_path(path_to(read.targets, *read.region));
  fabric::Read request;
  request.stream = read.stream;
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
  send(found->second->peer, {AliasMessage::Kind::let_go, region});
}

void Core::send(const std::shared_ptr<fabric::Peer>& peer, const AliasMessage& message) {
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
  if (status.ok()) {
    const std::string taken = read.state->taken_path();
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
  const fabric::Identity& from = message.from->identity();
  AliasMessage holding;
  try {
    holding = decode_alias_message(message.bytes);
  } catch (const Error& error) {
    log::warn("{} sent {}", to_string(from), error.what());
    return station_->disconnect(*message.from);
  }
  using Kind = AliasMessage::Kind;
  if (holding.kind == Kind::let_go) return ledger_.let_go(from, holding.region);
  if (holding.kind == Kind::hold) {
    return send(message.from, {ledger_.hold(from, holding.region), holding.region});
  }
  const auto waits = std::ranges::find_if(reads_, [&](const auto& entry) {
    const Running& read = entry.second;
    return read.stage == Running::Stage::holding && read.owner->peer == message.from &&
           read.number() == holding.region;
  });
  if (waits == reads_.end()) {  // cancelled meanwhile
    if (holding.kind == Kind::held) {
      send(message.from, {Kind::let_go, holding.region});
    }
    return;
  }
  const fabric::OpId id = waits->first;
  if (holding.kind == Kind::gone) {
    waits->second.owner->attached.erase(holding.region);
    return finish(id, {Code::withdrawn, to_string(from) + " took its memory back"});
  }
  try {
    if (holding.kind == Kind::held) return on_held(id, waits->second);
    give_up_aliasing(waits->second);
    begin_reading(id, waits->second);
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
