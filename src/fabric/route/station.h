// How a process meets others: shared memory with those on its host and, once that is opened, the
// network with all. One object owns both, chooses for each peer and is polled as one.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "copy/crew.h"
#include "fabric/core/fabric.h"
#include "fabric/core/port_range.h"
#include "fabric/route/select.h"
#include "os/io/fd.h"
#include "os/net/ip_address.h"
#include "os/process/fork.h"

namespace tensorbus::fabric {

struct StationOptions {
  std::string name;            // Identity::name
  std::string secret;          // what those who connect must know
  std::shared_ptr<Pool> pool;  // whose memory peers of this host map; null: its own, for words only
  std::string no_shm{};  // why this process calls nobody through shared memory; empty: it does
  // Whose threads copy between processes of this host.
  std::shared_ptr<copy::Crew> crew = std::make_shared<copy::Crew>();
};

struct NetworkOptions {
  std::string bind;   // an address of this machine that the other hosts reach
  PortRange ports{};  // to listen on there
  // Addresses that may connect; more by admit(). Nothing: everybody may.
  std::optional<std::vector<os::IpAddress>> hosts{};
};

// Regions are exposed through both transports; a read takes all its bytes through one, so its
// sources must be connected through the same.
//
// A station does not survive a fork: its sockets are closed in the child, its memory is the
// parent's. In the child every call throws Error(failed) and dropping the station does nothing.
// Regions look after themselves.
class Station final : public Fabric {
 public:
  // Listens on this host at once.
  explicit Station(StationOptions options);
  ~Station() override;

  // At most once, and before anybody is told the address, which changes. Error: invalid_argument
  // for settings, unsupported in a build without UCX, failed with UCX's text.
  void open_network(NetworkOptions options);

  // One per transport, the preferred first.
  std::span<const Address> addresses() const noexcept { return addresses_; }
  // The ways to a process that has these addresses.
  Route route_to(std::span<const Address> peer) const { return Route(select(reach_, peer)); }
  // Connects by the way that the route has come to.
  std::shared_ptr<Peer> connect(const Route& route, const std::string& secret, Deadline deadline);
  // The transport that serves a peer. For callers who cannot afford that the station looks the
  // transport up for every message; a transport knows nothing of forks.
  Fabric& serving(const Peer& peer) { return part_of(peer); }

  const Address& address() const noexcept override { return address_; }
  std::shared_ptr<Peer> connect(const Address& remote, const std::string& secret,
                                Deadline deadline) override;
  void disconnect(Peer& peer) override;
  void hand_to(Receiver& receiver) override;
  void admit(const std::string& who, const std::optional<Address>& address) override;
  void send(Peer& peer, std::span<const std::byte> message) override {
    part_of(peer).send(peer, message);
  }

  using Reads::expose;
  Gate make_gate() override { return shm().make_gate(); }
  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                 std::shared_ptr<const Lender> lender) override;
  void attach(Peer& peer, std::uint64_t region, OpId id, Deadline deadline) override;
  void read(Read read, OpId id, Deadline deadline) override;
  std::int64_t bytes_read(OpId id) const noexcept override;
  Word make_word(Peer& peer, std::uint64_t initial) override {
    return part_of(peer).make_word(peer, initial);
  }
  void swap(const Swap& swap, OpId id, Deadline deadline) override;
  const std::atomic<std::uint64_t>* watch(Peer& peer, std::uint32_t word) override {
    return part_of(peer).watch(peer, word);
  }
  void cancel(OpId id) noexcept override;

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

  // The events of one transport: those of both would have to be copied. The transports take turns.
  std::span<const Event> poll() override;
  bool arm() override;
  int fd() const noexcept override;
  TimePoint wake_at() const noexcept override;

 private:
  bool forked() const noexcept { return os::fork_generation() != generation_; }
  void check_not_forked() const {
    if (forked()) os::check_not_forked(generation_, "fabric");
  }
  Fabric& shm() const {
    check_not_forked();
    return *parts_.front();
  }
  std::size_t index_of(const Peer& peer) const;
  Fabric& part_of(const Peer& peer) const { return *parts_[index_of(peer)]; }
  void forget_the_gone();
  void note(std::size_t at, std::span<const Event> events);

  const unsigned generation_ = os::fork_generation();
  const std::string secret_;
  Reach reach_;
  std::vector<std::unique_ptr<Fabric>> parts_;  // shared memory, the network
  std::vector<Address> addresses_;
  Address address_;
  os::Fd epoll_;                               // of both
  std::map<const Peer*, std::size_t> routes_;  // which part serves it
  std::vector<const Peer*> gone_;              // told of in the last poll
  std::size_t next_polled_ = 0;
};

}  // namespace tensorbus::fabric
