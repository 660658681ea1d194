#include "fabric/endpoint_core.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace tensorbus::fabric {
namespace {

constexpr Duration connecting_time = std::chrono::seconds(10);
// Regions of one peer whose tables are kept for the next read.
constexpr std::size_t most_attached = 1024;

std::uint64_t payload_of(const plan::Stream& stream) {
  return static_cast<std::uint64_t>(stream.payload_bytes);
}

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
  Descriptor descriptor;
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
  const Way& way = *std::ranges::find(read.descriptor.ways,
                                      read.link->verdicts[read.link->current].kind, &Way::kind);
  if (const auto known = read.link->attached.find(way.region); known != read.link->attached.end()) {
    return begin_reading(id, read, known->second);
  }
  read.stage = Running::Stage::attaching;
  read.link->fabric->attach(*read.link->peer, way.region, id, read.deadline);
}

void EndpointCore::begin_reading(OpId id, Running& read,
                                 std::shared_ptr<const RemoteRegion> region) {
  if (region->forms() != read.descriptor.forms) {
    throw Error(Code::invalid_argument,
                "the descriptor does not describe what its owner exposes; it was changed on its "
                "way");
  }
  read.stage = Running::Stage::reading;
  read.state->set_path(region->path());
  Read request;
  request.stream = read.stream;
  request.sources = {{read.link->peer, std::move(region), read.descriptor.ticket}};
  request.targets = read.targets;
  read.link->fabric->read(std::move(request), id, read.deadline);
}

void EndpointCore::cancel(OpId id) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return;
  if (found->second.stage == Running::Stage::connecting) {
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
      path.bytes.add(payload_of(*read.stream));
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
      } else if (const auto* up = std::get_if<PeerUp>(&event)) {
        on(*up);
      } else if (const auto* lost = std::get_if<PeerLost>(&event)) {
        on(*lost);
      }
    }
  }
  expire_connecting();
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
    begin_reading(completion.id, read, completion.region);
  } catch (...) {
    finish(completion.id, current_exception_status());
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
  const LinkPtr link = link_of(*lost.peer);
  if (link == nullptr) return;
  if (!link->up) return try_next(link, lost.reason);
  links_.erase(link->owner.id);
  counters_.connections.set(links_.size());
}

void EndpointCore::expire_connecting() {
  std::vector<OpId> late;
  for (const auto& [id, read] : reads_) {
    if (read.stage == Running::Stage::connecting && read.deadline.expired()) late.push_back(id);
  }
  for (const OpId id : late) finish(id, {Code::timeout, "no connection before the deadline"});
}

bool EndpointCore::arm() {
  return std::ranges::all_of(fabrics_, [](const auto& fabric) { return fabric->arm(); });
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
  return fds;
}

}  // namespace tensorbus::fabric
