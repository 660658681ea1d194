#include "endpoint/core.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace tensorbus::fabric {
namespace {

constexpr Duration connecting_time = std::chrono::seconds(10);
// Regions of one peer whose tables are kept for the next read.
constexpr std::size_t most_attached = 1024;

}  // namespace

EndpointCore::EndpointCore(std::vector<std::unique_ptr<Fabric>> fabrics, Reach reach,
                           std::string descriptor_secret, EndpointCounters& counters)
    : reach_(std::move(reach)),
      descriptor_secret_(std::move(descriptor_secret)),
      counters_(counters),
      fabrics_(std::move(fabrics)) {}

EndpointCore::~EndpointCore() {
  exposures_.clear();
  links_.clear();
  fabrics_.clear();
  // Only now nobody touches their targets.
  for (auto& [id, read] : reads_) {
    read.state->finish({Code::cancelled, read.state->what + ": the endpoint was closed"});
  }
}

std::string EndpointCore::expose(std::span<const TensorView> tensors) {
  return expose(tensors, false);
}

std::string EndpointCore::expose_frozen(std::span<const TensorView> tensors,
                                        std::vector<std::shared_ptr<void>> memory) {
  std::string descriptor = expose(tensors, true);
  ledger_.lend(exposures_.rbegin()->first, std::move(memory));
  return descriptor;
}

std::string EndpointCore::expose(std::span<const TensorView> tensors, bool frozen) {
  Descriptor descriptor;
  descriptor.frozen = frozen;
  descriptor.owner = fabrics_.front()->address().identity;
  descriptor.secret = descriptor_secret_;
  std::vector<std::unique_ptr<Region>> regions;
  for (const auto& fabric : fabrics_) {
    regions.push_back(fabric->expose(tensors));
    const Address& address = fabric->address();
    descriptor.ways.push_back({address.kind, address.where, regions.back()->number()});
  }
  descriptor.forms = regions.front()->forms();
  std::string bytes = encode(descriptor);
  exposures_.emplace(regions.front()->number(), std::move(regions));
  counters_.exposures.set(exposures_.size());
  return bytes;
}

bool EndpointCore::release(const Descriptor& descriptor) {
  if (descriptor.owner != fabrics_.front()->address().identity) {
    throw Error(Code::invalid_argument,
                "this descriptor was made by another endpoint, of " + to_string(descriptor.owner));
  }
  const bool there = exposures_.erase(descriptor.ways.front().region) > 0;
  ledger_.take_back(descriptor.ways.front().region);
  counters_.exposures.set(exposures_.size());
  return there;
}

void EndpointCore::start(OpId id, PendingRead pending) {
  Running& read = reads_[id];
  static_cast<PendingRead&>(read) = std::move(pending);
  try {
    read.link = link_to(read);
    if (read.link->up) proceed(id, read);
  } catch (...) {
    finish(id, current_exception_status());
  }
}

Fabric* EndpointCore::fabric_of(std::string_view kind) const {
  for (const auto& fabric : fabrics_) {
    if (fabric->address().kind == kind) return fabric.get();
  }
  return nullptr;
}

EndpointCore::LinkPtr EndpointCore::link_to(const PendingRead& read) {
  const Descriptor& descriptor = read.descriptor;
  if (const auto found = links_.find(descriptor.owner.id); found != links_.end()) {
    const LinkPtr& link = found->second;
    if (link->owner != descriptor.owner) {
      throw Error(Code::invalid_argument,
                  "the descriptor names another process than the one that has its id, " +
                      to_string(link->owner));
    }
    if (link->secret != read.secret) {
      throw Error(Code::denied, "the descriptor's secret is not its owner's");
    }
    return link;
  }
  auto link = std::make_shared<Link>();
  link->owner = descriptor.owner;
  link->secret = read.secret;
  link->verdicts = select(reach_, addresses(descriptor));
  const auto serves = [](const Verdict& verdict) { return verdict.refusal.ok(); };
  const auto first = std::ranges::find_if(link->verdicts, serves);
  if (first == link->verdicts.end()) {
    throw Error(Code::unreachable, "no fabric reaches it: " + explain(link->verdicts));
  }
  link->current = static_cast<std::size_t>(first - link->verdicts.begin());
  link->fabric = fabric_of(first->kind);
  link->peer =
      link->fabric->connect(first->address, link->secret, Deadline(now() + connecting_time));
  links_[descriptor.owner.id] = link;
  counters_.connections.set(links_.size());
  return link;
}

// Another user's process, say, does not share its memory but may be reached over the network.
void EndpointCore::try_next(const LinkPtr& link, Status refusal) {
  const bool elsewhere = refusal.code == Code::denied;
  const Code code = refusal.code;
  link->verdicts[link->current].refusal = std::move(refusal);
  while (elsewhere && ++link->current < link->verdicts.size()) {
    Verdict& next = link->verdicts[link->current];
    if (!next.refusal.ok()) continue;
    try {
      link->fabric = fabric_of(next.kind);
      link->peer =
          link->fabric->connect(next.address, link->secret, Deadline(now() + connecting_time));
      return;
    } catch (...) {
      next.refusal = current_exception_status();
    }
  }
  links_.erase(link->owner.id);
  counters_.connections.set(links_.size());
  const Status status{code, explain(link->verdicts)};
  for (const OpId id : waiting_for(link)) finish(id, status);
}

void EndpointCore::proceed(OpId id, Running& read) {
  const std::string& kind = read.link->verdicts[read.link->current].kind;
  if (read.let_go && kind != "shm") give_up_aliasing(read);
  const Way& way = *std::ranges::find(read.descriptor.ways, kind, &Way::kind);
  if (const auto known = read.link->attached.find(way.region); known != read.link->attached.end()) {
    read.region = known->second;
    return begin_reading(id, read);
  }
  read.stage = Running::Stage::attaching;
  read.link->fabric->attach(*read.link->peer, way.region, id, read.deadline);
}

void EndpointCore::begin_reading(OpId id, Running& read) {
  if (read.region->forms() != read.descriptor.forms) {
    throw Error(Code::invalid_argument,
                "the descriptor does not describe what its owner exposes; it was changed on its "
                "way");
  }
  if (read.let_go) {
    // The owner must know before we look: from its answer on the memory is ours to see.
    read.stage = Running::Stage::holding;
    return send(*read.link->fabric, read.link->peer, {Holding::Kind::hold, read.region->number()});
  }
  read.stage = Running::Stage::reading;
  read.state->set_path(read.region->path());
  Read request;
  request.stream = read.stream;
  request.sources = {{read.link->peer, read.region, read.descriptor.ticket}};
  request.targets = read.targets;
  read.link->fabric->read(std::move(request), id, read.deadline);
}

void EndpointCore::give_up_aliasing(Running& read) {
  read.let_go = nullptr;
  read.copy_instead(read);
}

void EndpointCore::on_held(OpId id, Running& read) {
  // Whatever happens now, the owner hears when nobody looks at it any more.
  std::shared_ptr<void> hold(nullptr, [let_go = read.let_go](void*) { let_go(); });
  std::optional<Alias> alias = read.region->alias();
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

void EndpointCore::let_go(const Id16& owner, std::uint64_t region) {
  const auto found = links_.find(owner);
  if (found == links_.end() || !found->second->up) return;  // it is gone, or sees us go
  send(*found->second->fabric, found->second->peer, {Holding::Kind::let_go, region});
}

void EndpointCore::send(Fabric& fabric, const std::shared_ptr<Peer>& peer, const Holding& message) {
  outbox_.push_back({&fabric, peer, encode(message)});
  send_what_waits();
}

void EndpointCore::send_what_waits() {
  std::vector<Outgoing> rest;
  for (Outgoing& each : outbox_) {
    try {
      each.fabric->send(*each.peer, std::as_bytes(std::span(each.bytes)));
    } catch (const Error& error) {
      if (error.code() == Code::queue_full) rest.push_back(std::move(each));
    }
  }
  outbox_ = std::move(rest);
}

void EndpointCore::cancel(OpId id) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return;
  if (found->second.waits_here()) {
    return finish(id, {Code::cancelled, "it was cancelled"});
  }
  found->second.link->fabric->cancel(id);
}

void EndpointCore::finish(OpId id, Status status) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return;
  const Running read = std::move(found->second);
  reads_.erase(found);
  if (status.ok()) {
    for (EndpointCounters::Path& path : counters_.paths) {
      if (path.name != read.state->path) continue;
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

bool EndpointCore::poll() {
  bool any = false;
  for (const auto& fabric : fabrics_) {
    for (const Event& event : fabric->poll()) {
      any = true;
      if (const auto* completion = std::get_if<Completion>(&event)) {
        on(*completion);
      } else if (const auto* message = std::get_if<Message>(&event)) {
        on(*fabric, *message);
      } else if (const auto* up = std::get_if<PeerUp>(&event)) {
        on(*up);
      } else if (const auto* lost = std::get_if<PeerLost>(&event)) {
        on(*lost);
      }
    }
  }
  if (!outbox_.empty()) send_what_waits();
  ledger_.look();
  expire_waiting();
  return any;
}

void EndpointCore::on(const Completion& completion) {
  const auto found = reads_.find(completion.id);
  if (found == reads_.end()) return;
  Running& read = found->second;
  if (!completion.status.ok() || read.stage == Running::Stage::reading) {
    if (completion.status.code == Code::withdrawn) {
      for (const Way& way : read.descriptor.ways) read.link->attached.erase(way.region);
    }
    return finish(completion.id, completion.status);
  }
  auto& attached = read.link->attached;
  attached[completion.region->number()] = completion.region;
  // The lowest number is the oldest.
  if (attached.size() > most_attached) attached.erase(attached.begin());
  try {
    read.region = completion.region;
    begin_reading(completion.id, read);
  } catch (...) {
    finish(completion.id, current_exception_status());
  }
}

void EndpointCore::on(Fabric& fabric, const Message& message) {
  const Identity& from = message.from->identity();
  Holding holding;
  try {
    holding = decode_holding(message.bytes);
  } catch (const Error& error) {
    log::warn("{} sent {}", to_string(from), error.what());
    return fabric.disconnect(*message.from);
  }
  using Kind = Holding::Kind;
  if (holding.kind == Kind::let_go) return ledger_.let_go(from, holding.region);
  if (holding.kind == Kind::hold) {
    return send(fabric, message.from, {ledger_.hold(from, holding.region), holding.region});
  }
  const auto waits = std::ranges::find_if(reads_, [&](const auto& entry) {
    const Running& read = entry.second;
    return read.stage == Running::Stage::holding && read.link->peer == message.from &&
           read.region->number() == holding.region;
  });
  if (waits == reads_.end()) {  // cancelled meanwhile
    if (holding.kind == Kind::held) {
      send(fabric, message.from, {Kind::let_go, holding.region});
    }
    return;
  }
  const OpId id = waits->first;
  if (holding.kind == Kind::gone) {
    waits->second.link->attached.erase(holding.region);
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

EndpointCore::LinkPtr EndpointCore::link_of(const Peer& peer) const {
  for (const auto& [id, link] : links_) {
    if (link->peer.get() == &peer) return link;
  }
  return nullptr;
}

std::vector<OpId> EndpointCore::waiting_for(const LinkPtr& link) const {
  std::vector<OpId> ids;
  for (const auto& [id, read] : reads_) {
    if (read.link == link && read.stage == Running::Stage::connecting) ids.push_back(id);
  }
  return ids;
}

void EndpointCore::on(const PeerUp& up) {
  const LinkPtr link = link_of(*up.peer);
  if (link == nullptr) return;  // one that reads from us
  link->up = true;
  log::debug("{} is read through {}", to_string(link->owner), link->verdicts[link->current].kind);
  for (const OpId id : waiting_for(link)) {
    try {
      proceed(id, reads_.at(id));
    } catch (...) {
      finish(id, current_exception_status());
    }
  }
}

void EndpointCore::on(const PeerLost& lost) {
  std::erase_if(outbox_, [&](const Outgoing& each) { return each.peer == lost.peer; });
  ledger_.lost(lost.peer->identity());
  const LinkPtr link = link_of(*lost.peer);
  if (link == nullptr) return;
  if (!link->up) return try_next(link, lost.reason);
  links_.erase(link->owner.id);
  counters_.connections.set(links_.size());
  std::vector<OpId> over;
  for (const auto& [id, read] : reads_) {
    if (read.link == link && read.waits_here()) over.push_back(id);
  }
  for (const OpId id : over) finish(id, lost.reason);
}

void EndpointCore::expire_waiting() {
  std::vector<OpId> late;
  for (const auto& [id, read] : reads_) {
    if (read.waits_here() && read.deadline.expired()) late.push_back(id);
  }
  for (const OpId id : late) finish(id, {Code::timeout, "it did not answer before the deadline"});
}

bool EndpointCore::arm() {
  return outbox_.empty() &&
         std::ranges::all_of(fabrics_, [](const auto& fabric) { return fabric->arm(); });
}

TimePoint EndpointCore::wake_at() const noexcept {
  TimePoint first = TimePoint::max();
  for (const auto& fabric : fabrics_) first = std::min(first, fabric->wake_at());
  for (const auto& [id, read] : reads_) first = std::min(first, read.deadline.at());
  return first;
}

std::vector<int> EndpointCore::descriptors() const {
  std::vector<int> fds;
  for (const auto& fabric : fabrics_) fds.push_back(fabric->fd());
  for (const int fd : ledger_.descriptors()) fds.push_back(fd);
  return fds;
}

}  // namespace tensorbus::fabric
