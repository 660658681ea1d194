#include "fabric/route/station.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/overloaded.h"
#include "fabric/route/address.h"
#include "fabric/shm/fabric.h"
#include "fabric/ucx/ucx.h"

namespace tensorbus::fabric {
namespace {

constexpr std::size_t network_part = 1;
// Both numbers of a region in one, that of shared memory below.
constexpr int number_bits = 32;
constexpr std::uint64_t number_mask = (std::uint64_t{1} << number_bits) - 1;

class StationRegion final : public Region {
 public:
  explicit StationRegion(std::vector<std::unique_ptr<Region>> parts) : parts_(std::move(parts)) {
    for (std::size_t at = 0; at < parts_.size(); ++at) {
      if (parts_[at]->number() > number_mask) {
        throw Error(Code::queue_full, "this process has exposed too many regions");
      }
      number_ |= parts_[at]->number() << (at * number_bits);
    }
  }
  std::uint64_t number() const noexcept override { return number_; }
  const Forms& forms() const noexcept override { return parts_.front()->forms(); }
  Gate& gate() noexcept override { return parts_.front()->gate(); }
  void serve(std::uint64_t number, plan::Stream stream) override {
    for (const auto& part : parts_) part->serve(number, stream);
  }

 private:
  std::vector<std::unique_ptr<Region>> parts_;
  std::uint64_t number_ = 0;
};

void add_to(const os::Fd& epoll, int fd) {
  epoll_event event{EPOLLIN, {}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) os::throw_errno("epoll_ctl");
}

}  // namespace

Station::Station(StationOptions options) : secret_(options.secret), reach_(own_reach({})) {
  reach_.no_shm = std::move(options.no_shm);
  ShmOptions shm;
  shm.name = std::move(options.name);
  shm.secret = std::move(options.secret);
  shm.pool = std::move(options.pool);
  shm.crew = std::move(options.crew);
  parts_.push_back(make_shm_fabric(std::move(shm)));
  address_ = parts_.front()->address();
  addresses_.push_back(address_);
}

Station::~Station() {
  if (!forked()) return;
  // What would be released here is lost to the child, and needed by the parent.
  for (auto& part : parts_) {
    [[maybe_unused]] const Fabric* const lost = part.release();
  }
}

void Station::open_network(NetworkOptions options) {
  check_not_forked();
  UcxOptions ucx;
  ucx.identity = address_.identity;
  ucx.secret = secret_;
  ucx.bind = std::move(options.bind);
  ucx.ports = options.ports;
  ucx.hosts = std::move(options.hosts);
  auto network = make_ucx_fabric(ucx);
  os::Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) os::throw_errno("epoll_create1");
  add_to(epoll, parts_.front()->fd());
  add_to(epoll, network->fd());
  epoll_ = std::move(epoll);
  reach_.no_ucx.clear();
  addresses_.push_back(network->address());
  address_ = joined(addresses_);
  parts_.push_back(std::move(network));
}

std::shared_ptr<Peer> Station::connect(const Route& route, const std::string& secret,
                                       Deadline deadline) {
  check_not_forked();
  const RouteVerdict& way = *route.way();
  const std::size_t at = way.kind == addresses_.front().kind ? 0 : network_part;
  auto peer = parts_[at]->connect(way.address, secret, deadline);
  routes_[peer.get()] = at;
  return peer;
}

std::shared_ptr<Peer> Station::connect(const Address& remote, const std::string& secret,
                                       Deadline deadline) {
  const Route route = route_to(parts_of(remote));
  if (route.way() == nullptr) {
    throw Error(Code::unreachable, fmt::format("{} cannot be reached: {}",
                                               to_string(remote.identity), route.explain()));
  }
  return connect(route, secret, deadline);
}

void Station::admit(const std::string& who, const std::optional<Address>& address) {
  check_not_forked();
  const std::vector<Address> offered = address ? parts_of(*address) : std::vector<Address>();
  for (const auto& part : parts_) {
    const auto found = std::ranges::find(offered, part->address().kind, &Address::kind);
    part->admit(who, found == offered.end() ? std::nullopt : std::optional(*found));
  }
}

std::unique_ptr<Region> Station::expose(std::span<const TensorView> tensors, Gate gate,
                                        std::shared_ptr<const Lender> lender) {
  check_not_forked();
  std::vector<std::unique_ptr<Region>> regions;
  for (const auto& part : parts_) regions.push_back(part->expose(tensors, gate, lender));
  return std::make_unique<StationRegion>(std::move(regions));
}

void Station::attach(Peer& peer, std::uint64_t region, OpId id, Deadline deadline) {
  const std::size_t at = index_of(peer);
  const std::uint64_t number = at == network_part ? region >> number_bits : region & number_mask;
  parts_[at]->attach(peer, number, id, deadline);
}

void Station::read(Read read, OpId id, Deadline deadline) {
  if (read.sources.empty() || read.sources.front().peer == nullptr) {
    throw Error(Code::invalid_argument, "a read without sources");
  }
  const std::size_t at = index_of(*read.sources.front().peer);
  for (const Source& source : read.sources) {
    if (source.peer != nullptr && index_of(*source.peer) == at) continue;
    throw Error(Code::invalid_argument, "the sources of one read are reached in different ways");
  }
  parts_[at]->read(std::move(read), id, deadline);
}

std::int64_t Station::bytes_read(OpId id) const noexcept {
  std::int64_t bytes = 0;
  for (const auto& part : parts_) bytes += part->bytes_read(id);
  return bytes;
}

void Station::swap(const Swap& swap, OpId id, Deadline deadline) {
  if (swap.source.peer == nullptr) throw Error(Code::invalid_argument, "a swap without peer");
  part_of(*swap.source.peer).swap(swap, id, deadline);
}

void Station::cancel(OpId id) noexcept {
  if (forked()) return;
  for (const auto& part : parts_) part->cancel(id);
}

std::span<const Event> Station::poll() {
  check_not_forked();
  if (!gone_.empty()) forget_the_gone();
  for (std::size_t polled = 0; polled < parts_.size(); ++polled) {
    const std::size_t at = next_polled_;
    next_polled_ = at + 1 == parts_.size() ? 0 : at + 1;
    const std::span<const Event> events = parts_[at]->poll();
    if (events.empty()) continue;
    note(at, events);
    return events;
  }
  return {};
}

void Station::forget_the_gone() {
  for (const Peer* gone : gone_) routes_.erase(gone);
  gone_.clear();
}

void Station::note(std::size_t at, std::span<const Event> events) {
  for (const Event& event : events) {
    std::visit(Overloaded{
                   [&](const PeerUp& up) { routes_[up.peer.get()] = at; },
                   [&](const PeerLost& lost) { gone_.push_back(lost.peer.get()); },
                   [](const OneOf<Completion, Message> auto&) {},
               },
               event);
  }
}

bool Station::arm() {
  check_not_forked();
  bool all = true;
  for (const auto& part : parts_) all = part->arm() && all;
  return all;
}

int Station::fd() const noexcept {
  if (forked()) return -1;
  return epoll_ ? epoll_.get() : parts_.front()->fd();
}

TimePoint Station::wake_at() const noexcept {
  TimePoint earliest = TimePoint::max();
  if (forked()) return earliest;
  for (const auto& part : parts_) earliest = std::min(earliest, part->wake_at());
  return earliest;
}

void Station::hand_to(Receiver& receiver) {
  check_not_forked();
  for (const auto& part : parts_) part->hand_to(receiver);
}

void Station::disconnect(Peer& peer) {
  check_not_forked();
  const auto found = routes_.find(&peer);
  // A peer that was lost already has no route any more.
  if (found != routes_.end()) parts_[found->second]->disconnect(peer);
}

std::size_t Station::index_of(const Peer& peer) const {
  check_not_forked();
  const auto found = routes_.find(&peer);
  if (found != routes_.end()) return found->second;
  throw Error(Code::peer_lost, "the connection to " + to_string(peer.identity()) + " is over");
}

}  // namespace tensorbus::fabric
