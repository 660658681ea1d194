#include "push_pull/job/node.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config.h"
#include "base/log.h"
#include "fabric/route/address.h"
#include "os/net/tcp.h"
#include "os/process/process.h"

namespace tensorbus::push_pull {
namespace {

// With a core for everybody a spin costs less than waking up. Without, it must not take the core
// from the node that is waited for, and nodes hand the cores to each other: for longer than all of
// them need, shorter than a stranger keeps a core.
constexpr Duration spin_with_cores = std::chrono::microseconds(100);
constexpr Duration spin_in_vain = std::chrono::microseconds(2);
constexpr Duration spin_in_turns = std::chrono::milliseconds(1);

os::SpinBudget spin_for(bool has_cores, const std::optional<Duration>& given) {
  if (given) return {*given, *given};
  if (const auto text = config::variable("TENSORBUS_SPIN_US")) {
    try {
      const auto budget = std::chrono::microseconds(std::stoul(*text));
      return {budget, budget};
    } catch (const std::exception&) {
      throw Error(Code::invalid_argument,
                  "TENSORBUS_SPIN_US is \"" + *text + "\"; it must be a number of microseconds");
    }
  }
  if (!has_cores) return {spin_in_turns, Duration::zero(), os::Between::yield};
  return {spin_with_cores, spin_in_vain};
}

// The addresses that the others let in, should the network carry. A node that needs no network may
// have none.
template <typename Bind>
std::vector<os::IpAddress> hosts_of(Bind bind) try {
  return os::own_ip_addresses(bind());
} catch (const Error&) {
  return {};
}

}  // namespace

Node::Node(Role role, const NodeOptions& options, Client& client)
    : self_{role, options.rank},
      job_(options.job),
      page_(observe::open_metrics(std::nullopt)),
      trace_(observe::open_trace(std::nullopt)),
      recorder_({{"side", std::string(to_string(role))}, {"rank", std::to_string(options.rank)}}),
      client_(client),
      pool_(options.pool != nullptr ? options.pool : std::make_shared<fabric::Pool>()),
      membership_(self_, options) {
  partners_.resize(static_cast<std::size_t>(role == Role::worker ? job_.servers : job_.workers));
  meet_the_others(options);
  connect_all(options.deadline);
  log::info("push-pull: {} is connected to {} {}s", to_string(self_), partners_.size(),
            to_string(other(0).role));
}

Node::~Node() {
  if (loop_ != nullptr) loop_->close();
}

Member Node::other(int group) const {
  return {self_.role == Role::worker ? Role::server : Role::worker,
          group * job_.group_size + self_.rank % job_.group_size};
}

NodeRecord Node::record_of(const Member& member) const {
  return tensorbus::wire::read<NodeRecord>(membership_.record(member));
}

bool Node::needs_network(const NodeRecord& other) const {
  const bool here = other.address.identity.host == record_.address.identity.host;
  if (record_.transport == Transport::network || other.transport == Transport::network) return true;
  if (!here && record_.transport == Transport::shared_memory) {
    throw Error(Code::unreachable,
                fmt::format("{} is on another host, and only shared memory was allowed",
                            to_string(other.address.identity)));
  }
  return !here;
}

void Node::meet_the_others(const NodeOptions& options) {
  station_ = std::make_unique<fabric::Station>(
      fabric::StationOptions{to_string(self_), membership_.secret(), pool_});
  const auto bind = [&] {
    return options.bind.empty() ? os::address_towards(job_.host, job_.port) : options.bind;
  };
  record_ = {
      options.transport, station_->address(), hosts_of(bind), {os::boot_id(), os::own_cores()}};
  membership_.join(tensorbus::wire::write(record_), options.deadline);
  membership_.wait_for_all(options.deadline);

  for (std::size_t group = 0; group < partners_.size(); ++group) {
    others_.push_back(record_of(other(static_cast<int>(group))));
  }
  if (std::ranges::any_of(others_,
                          [this](const NodeRecord& each) { return needs_network(each); })) {
    open_network(options, bind());
  }
  Loop::Events& events = *this;
  loop_ = std::make_unique<Loop>(events, *station_,
                                 spin_for(has_cores_for(record_.seat, seats()), options.spin));
  const Loop::Lock lock = loop_->lock();  // its own thread polls already
  station_->hand_to(*loop_);
}

void Node::open_network(const NodeOptions& options, const std::string& bind) {
  fabric::NetworkOptions network{bind, {options.first_port, options.last_port}};
  network.hosts.emplace();
  for (const NodeRecord& each : others_) {
    network.hosts->insert(network.hosts->end(), each.hosts.begin(), each.hosts.end());
  }
  station_->open_network(std::move(network));
  membership_.publish_address(fabric::encode(network_only(station_->address())), options.deadline);
}

// Nodes in other network namespaces of the machine count, schedulers do not: a scheduler only
// sleeps.
std::vector<Seat> Node::seats() const {
  std::vector<Seat> seats;
  for (const Member& member : membership_.everybody()) {
    if (member.role != Role::scheduler) seats.push_back(record_of(member).seat);
  }
  return seats;
}

void Node::connect_all(Deadline deadline) {
  std::vector<fabric::Address> addresses;
  for (int group = 0; group < static_cast<int>(others_.size()); ++group) {
    const NodeRecord& each = others_[static_cast<std::size_t>(group)];
    addresses.push_back(needs_network(each)
                            ? fabric::decode_address(membership_.address(other(group), deadline))
                            : each.address);
  }
  Loop::Lock lock = loop_->lock();
  if (self_.role == Role::worker) {
    for (int group = 0; group < static_cast<int>(others_.size()); ++group) {
      const auto index = static_cast<std::size_t>(group);
      const auto peer = station_->connect(addresses[index], membership_.secret(), deadline);
      calling_[peer.get()] = group;
    }
  }
  const auto first_absent = [this] {
    return std::ranges::find_if(partners_, [](const auto& partner) { return partner == nullptr; });
  };
  const auto absent = [&] { return first_absent() != partners_.end(); };
  loop_->wait(lock, deadline,
              [&] { return failure_.has_value() || !absent() || membership_.lost().has_value(); });
  if (failure_) throw Error(*failure_);
  if (!absent()) return;
  if (const auto lost = membership_.lost()) throw Error(*lost);
  const auto group = static_cast<int>(first_absent() - partners_.begin());
  throw Error(Code::timeout, to_string(other(group)) + " did not connect in time");
}

void Node::add_partner(const std::shared_ptr<fabric::Peer>& peer, int group) {
  auto partner = std::make_unique<Partner>(station_->serving(*peer), peer, group,
                                           fmt::format("{} {}", to_string(other(0).role), group));
  by_peer_[peer.get()] = partner.get();
  Partner& added = *(partners_[static_cast<std::size_t>(group)] = std::move(partner));
  client_.on_up(added);
}

void Node::on_up(const std::shared_ptr<fabric::Peer>& peer) {
  if (const auto called = calling_.find(peer.get()); called != calling_.end()) {
    const int group = called->second;
    calling_.erase(called);
    return add_partner(peer, group);
  }
  for (std::size_t group = 0; group < others_.size(); ++group) {
    const NodeRecord& each = others_[group];
    if (each.address.identity.id != peer->identity().id || partners_[group] != nullptr) continue;
    return add_partner(peer, static_cast<int>(group));
  }
  log::warn("push-pull: {} has no business here", fabric::to_string(peer->identity()));
}

Partner* Node::partner_of(const fabric::Peer& peer) {
  // Mostly the same again.
  if (last_heard_ != nullptr && &last_heard_->peer() == &peer) return last_heard_;
  const auto found = by_peer_.find(&peer);
  if (found == by_peer_.end()) return nullptr;
  last_heard_ = found->second;
  return last_heard_;
}

void Node::on_message(fabric::Peer& peer, std::string_view message) {
  Partner* const from = partner_of(peer);
  if (from == nullptr || from->lost()) return;
  Partner& partner = *from;
  try {
    wire::Body decoder(message);
    const wire::Kind kind = wire::take_kind(decoder);
    if (kind == wire::Kind::inlet_closed) {
      partner.forget_inlet(wire::take<wire::InletClosed>(decoder).inlet);
      return decoder.end();
    }
    if (kind != wire::Kind::part) return client_.on_message(partner, kind, decoder);
    const auto whole = partner.assemble(decoder.raw(decoder.left()));
    if (!whole) return;
    wire::Body joined(*whole);
    const wire::Kind inner = wire::take_kind(joined);
    if (inner == wire::Kind::part) throw Error(Code::failed, "a message within a message");
    client_.on_message(partner, inner, joined);
  } catch (const Error& error) {
    partner.disconnect();
    on_lost(peer, {Code::peer_lost,
                   fmt::format("{} sent what it must not: {}", partner.name(), error.what())});
  }
}

void Node::on_lost(fabric::Peer& peer, const Status& reason) {
  if (const auto called = calling_.find(&peer); called != calling_.end()) {
    calling_.erase(called);
    failure_ = reason;
    return;
  }
  const auto found = by_peer_.find(&peer);
  if (found == by_peer_.end() || found->second->lost()) return;
  found->second->lose({Code::peer_lost, reason.message});
  client_.on_lost(*found->second);
}

void Node::on_turn() {
  for (const auto& partner : partners_) {
    if (partner != nullptr && partner->is_behind()) partner->flush();
  }
  client_.on_turn();
}

void Node::stop(Deadline deadline) {
  try {
    membership_.leave(deadline);
  } catch (...) {
    loop_->close();
    throw;
  }
  loop_->close();
}

}  // namespace tensorbus::push_pull
