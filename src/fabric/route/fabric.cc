#include "fabric/route/fabric.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "os/io/fd.h"

namespace tensorbus::fabric {
namespace {

using Json = nlohmann::json;

constexpr const char* kind_name = "routed";
// Both numbers of a region in one.
constexpr int number_bits = 32;
constexpr std::uint64_t number_mask = (std::uint64_t{1} << number_bits) - 1;

std::string pack_addresses(std::span<const Address> addresses) {
  Json list = Json::array();
  for (const Address& address : addresses) {
    const std::string bytes = encode(address);
    list.push_back(Json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end())));
  }
  std::string packed;
  Json::to_msgpack(list, packed);
  return packed;
}

std::vector<Address> unpack_addresses(const Address& routed) try {
  const Json list = Json::from_msgpack(routed.where.begin(), routed.where.end());
  if (!list.is_array() || list.size() > 8) throw std::invalid_argument("a list of addresses");
  std::vector<Address> addresses;
  for (const Json& each : list) {
    const auto& bytes = each.get_binary();
    addresses.push_back(
        decode_address({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    addresses.back().identity = routed.identity;  // who it is said to be: the part checks that
  }
  return addresses;
} catch (const std::exception& error) {
  throw Error(Code::invalid_argument, fmt::format("the address of {} is malformed: {}",
                                                  to_string(routed.identity), error.what()));
}

std::vector<Address> unpack_if_routed(const Address& address) {
  return address.kind == kind_name ? unpack_addresses(address) : std::vector{address};
}

class RoutedRegion final : public Region {
 public:
  explicit RoutedRegion(std::vector<std::unique_ptr<Region>> parts) : parts_(std::move(parts)) {
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

class RoutedFabric final : public Fabric {
 public:
  RoutedFabric(std::vector<std::unique_ptr<Fabric>> parts, Reach reach)
      : parts_(std::move(parts)), reach_(std::move(reach)), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (parts_.empty() || parts_.size() > 2) {
      throw Error(Code::invalid_argument, "one or two fabrics can be routed");
    }
    std::vector<Address> addresses;
    for (const auto& part : parts_) {
      addresses.push_back(part->address());
      epoll_event event{EPOLLIN, {}};
      if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, part->fd(), &event) != 0) {
        throw Error(Code::failed, "epoll refuses a fabric's descriptor");
      }
    }
    address_ = {addresses.front().identity, kind_name, pack_addresses(addresses)};
  }

  const Address& address() const noexcept override { return address_; }
  Gate make_gate() override { return parts_.front()->make_gate(); }
  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                 std::shared_ptr<const Lender> lender) override {
    std::vector<std::unique_ptr<Region>> regions;
    for (const auto& part : parts_) regions.push_back(part->expose(tensors, gate, lender));
    return std::make_unique<RoutedRegion>(std::move(regions));
  }

  std::shared_ptr<Peer> connect(const Address& remote, const std::string& secret,
                                Deadline deadline) override {
    const std::vector<Address> addresses = unpack_if_routed(remote);
    const auto verdicts = select(reach_, addresses);
    for (const Verdict& verdict : verdicts) {
      if (!verdict.refusal.ok()) continue;
      for (std::size_t at = 0; at < parts_.size(); ++at) {
        if (parts_[at]->address().kind != verdict.kind) continue;
        auto peer = parts_[at]->connect(verdict.address, secret, deadline);
        routes_[peer.get()] = at;
        return peer;
      }
    }
    throw Error(Code::unreachable, fmt::format("{} cannot be reached: {}",
                                               to_string(remote.identity), explain(verdicts)));
  }

  void disconnect(Peer& peer) override { part_of(peer).disconnect(peer); }
  void admit(const std::string& who, const std::optional<Address>& address) override {
    std::vector<Address> addresses;
    if (address) addresses = unpack_if_routed(*address);
    for (const auto& part : parts_) {
      const auto same = [&](const Address& each) { return each.kind == part->address().kind; };
      const auto found = std::ranges::find_if(addresses, same);
      part->admit(who, found == addresses.end() ? std::nullopt : std::optional(*found));
    }
  }
  void send(Peer& peer, std::span<const std::byte> message) override {
    part_of(peer).send(peer, message);
  }
  std::uint64_t open_inlet(Peer& peer, std::span<std::byte> memory, const Pool* pool) override {
    return part_of(peer).open_inlet(peer, memory, pool);
  }
  void close_inlet(Peer& peer, std::uint64_t inlet) override {
    part_of(peer).close_inlet(peer, inlet);
  }
  void write(Peer& peer, std::uint64_t inlet, std::uint64_t offset,
             std::span<const std::byte> bytes) override {
    part_of(peer).write(peer, inlet, offset, bytes);
  }
  SharedInlet inlet(Peer& peer, std::uint64_t number) override {
    return part_of(peer).inlet(peer, number);
  }

  // The remote's parts are in the same order as ours only if it has as many; the kind decides.
  void attach(Peer& peer, std::uint64_t region, OpId id, Deadline deadline) override {
    const std::size_t at = route_of(peer);
    const bool network = parts_[at]->address().kind == "ucx";
    const std::uint64_t first = region & number_mask;
    const std::uint64_t second = region >> number_bits;
    parts_[at]->attach(peer, network && second != 0 ? second : first, id, deadline);
  }

  void read(Read read, OpId id, Deadline deadline) override {
    if (read.sources.empty() || read.sources.front().peer == nullptr) {
      throw Error(Code::invalid_argument, "a read without sources");
    }
    const std::size_t at = route_of(*read.sources.front().peer);
    for (const Source& source : read.sources) {
      if (source.peer != nullptr && route_of(*source.peer) == at) continue;
      throw Error(Code::invalid_argument, "the sources of one read are reached in different ways");
    }
    parts_[at]->read(std::move(read), id, deadline);
  }
  std::int64_t bytes_read(OpId id) const noexcept override {
    std::int64_t bytes = 0;
    for (const auto& part : parts_) bytes += part->bytes_read(id);
    return bytes;
  }

  Word make_word(Peer& peer, std::uint64_t initial) override {
    return part_of(peer).make_word(peer, initial);
  }
  void swap(const Swap& swap, OpId id, Deadline deadline) override {
    if (swap.source.peer == nullptr) throw Error(Code::invalid_argument, "a swap without peer");
    part_of(*swap.source.peer).swap(swap, id, deadline);
  }
  const std::atomic<std::uint64_t>* watch(Peer& peer, std::uint32_t word) override {
    return part_of(peer).watch(peer, word);
  }
  void cancel(OpId id) noexcept override {
    for (const auto& part : parts_) part->cancel(id);
  }

  std::span<const Event> poll() override {
    for (const Peer* gone : std::exchange(gone_, {})) routes_.erase(gone);
    events_.clear();
    for (std::size_t at = 0; at < parts_.size(); ++at) {
      for (const Event& event : parts_[at]->poll()) {
        if (const auto* up = std::get_if<PeerUp>(&event)) routes_[up->peer.get()] = at;
        if (const auto* lost = std::get_if<PeerLost>(&event)) gone_.push_back(lost->peer.get());
        events_.push_back(event);
      }
    }
    return events_;
  }
  bool arm() override {
    bool all = true;
    for (const auto& part : parts_) all = part->arm() && all;
    return all;
  }
  int fd() const noexcept override { return epoll_.get(); }
  TimePoint wake_at() const noexcept override {
    TimePoint earliest = TimePoint::max();
    for (const auto& part : parts_) earliest = std::min(earliest, part->wake_at());
    return earliest;
  }

 private:
  std::size_t route_of(const Peer& peer) const {
    const auto found = routes_.find(&peer);
    if (found != routes_.end()) return found->second;
    throw Error(Code::peer_lost, "the connection to " + to_string(peer.identity()) + " is over");
  }
  Fabric& part_of(const Peer& peer) const { return *parts_[route_of(peer)]; }

  std::vector<std::unique_ptr<Fabric>> parts_;
  Reach reach_;
  Address address_;
  os::Fd epoll_;
  std::map<const Peer*, std::size_t> routes_;
  std::vector<const Peer*> gone_;  // told of in the last poll
  std::vector<Event> events_;
};

}  // namespace

std::unique_ptr<Fabric> make_routed_fabric(std::vector<std::unique_ptr<Fabric>> parts,
                                           Reach reach) {
  return std::make_unique<RoutedFabric>(std::move(parts), std::move(reach));
}

Address network_only(const Address& address) {
  if (address.kind != kind_name) return address;
  std::vector<Address> addresses = unpack_addresses(address);
  std::erase_if(addresses, [](const Address& each) { return each.kind != "ucx"; });
  return {address.identity, kind_name, pack_addresses(addresses)};
}

}  // namespace tensorbus::fabric
