#include "fabric/memory/fabric.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "base/overloaded.h"
#include "fabric/read/reading.h"
#include "fabric/read/staging.h"
#include "os/io/poll.h"

namespace tensorbus::fabric {

class MemoryFabric;

class MemoryHub {
 public:
  std::map<Id16, MemoryFabric*> fabrics;
  std::int64_t next_pid = 1;
  std::uint64_t connections = 0;
  MessageTap tap;
};

namespace {

struct Exposed {
  std::uint64_t number = 0;
  Forms forms;
  TensorMemory memory;
  Gate gate;
  bool withdrawn = false;
};

class MemoryRemoteRegion final : public RemoteRegion {
 public:
  explicit MemoryRemoteRegion(std::shared_ptr<const Exposed> exposed)
      : exposed_(std::move(exposed)) {}
  std::uint64_t number() const noexcept override { return exposed_->number; }
  const Forms& forms() const noexcept override { return exposed_->forms; }
  std::string_view path() const noexcept override { return "mapped"; }
  const Exposed& exposed() const noexcept { return *exposed_; }

 private:
  std::shared_ptr<const Exposed> exposed_;
};

class MemoryPeer final : public Peer {
 public:
  MemoryPeer(Identity identity, std::uint64_t connection)
      : identity_(std::move(identity)), connection_(connection) {}
  const Identity& identity() const noexcept override { return identity_; }
  bool up() const noexcept override { return up_; }

  Identity identity_;
  const std::uint64_t connection_;  // this end of it
  bool up_ = false;
  bool ended_ = false;
  // The other end; null until both are up and after either is lost.
  MemoryFabric* fabric_ = nullptr;
  std::weak_ptr<MemoryPeer> other_;
  std::deque<std::atomic<std::uint64_t>> words_;
  std::size_t waiting_ = 0;  // messages that wait to be polled at this end
  std::map<std::uint64_t, std::span<std::byte>> inlets_;  // that this end opened
  std::uint64_t last_inlet_ = 0;
};

struct Connecting {
  std::shared_ptr<MemoryPeer> peer;
  Address remote;
  std::string secret;
  Deadline deadline;
};
struct Attach {
  std::shared_ptr<MemoryPeer> peer;
  std::uint64_t region;
};
struct RunningRead {
  std::unique_ptr<Reading> reading;
  std::size_t next = 0;
  std::vector<Packer> packers;  // of its sources, if one of them is elsewhere
};
struct Operation {
  std::variant<Attach, RunningRead, Swap> work;
  Deadline deadline;
  bool cancelled = false;
};

const MemoryRemoteRegion& as_memory(const RemoteRegion& region) {
  const auto* ours = dynamic_cast<const MemoryRemoteRegion*>(&region);
  if (ours == nullptr) throw Error(Code::invalid_argument, "a region of another fabric");
  return *ours;
}

Status withdrawn(const Peer& peer) {
  return {Code::withdrawn, to_string(peer.identity()) + " took its memory back"};
}

}  // namespace

class MemoryFabric final : public Fabric {
 public:
  MemoryFabric(std::shared_ptr<MemoryHub> hub, MemoryFabricOptions options)
      : hub_(std::move(hub)), options_(std::move(options)) {
    address_ = {{options_.host, hub_->next_pid++, 0, random_id(), options_.name}, "memory", ""};
    hub_->fabrics[address_.identity.id] = this;
  }

  ~MemoryFabric() override {
    hub_->fabrics.erase(address_.identity.id);
    for (const auto& peer : peers_) {
      if (MemoryFabric* fabric = peer->fabric_) {
        const auto other = peer->other_.lock();
        fabric->lose(other, {Code::peer_lost, to_string(address_.identity) + " is gone"});
      }
    }
  }

  const Address& address() const noexcept override { return address_; }

  Gate make_gate() override { return Gate(std::make_shared<std::atomic<std::uint64_t>>(0)); }
  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                 std::shared_ptr<const Lender> lender) override;

  std::shared_ptr<Peer> connect(const Address& remote, const std::string& secret,
                                Deadline deadline) override {
    auto peer = std::make_shared<MemoryPeer>(remote.identity, ++hub_->connections);
    peers_.push_back(peer);
    connecting_.push_back({peer, remote, secret, deadline});
    if (deadline.at() <= options_.clock->now()) {
      connecting_.pop_back();
      lose(peer, {Code::timeout, "no time to connect to " + to_string(remote.identity)});
    }
    wake_.signal();
    return peer;
  }

  void disconnect(Peer& any) override {
    const auto found = std::ranges::find(peers_, &any, &std::shared_ptr<MemoryPeer>::get);
    if (found == peers_.end() || (*found)->ended_) return;
    const auto peer = *found;
    MemoryFabric* fabric = peer->fabric_;
    const auto other = peer->other_.lock();
    lose(peer, {Code::cancelled, "disconnected from " + to_string(any.identity())});
    if (fabric != nullptr) {
      fabric->lose(other, {Code::peer_lost, to_string(address_.identity) + " disconnected"});
    }
  }

  void send(Peer& any, std::span<const std::byte> message) override {
    if (message.size() > max_message_bytes) {
      throw Error(Code::invalid_argument, fmt::format("a message of {} bytes; at most {} are sent",
                                                      message.size(), max_message_bytes));
    }
    const auto peer = usable(any);
    const auto other = peer->other_.lock();
    const MemoryFabricOptions& theirs = peer->fabric_->options_;
    if (other->waiting_ >= theirs.most_waiting_messages || (theirs.full && theirs.full())) {
      throw Error(Code::queue_full, to_string(any.identity()) + " does not take its messages");
    }
    std::vector<std::string> said{{reinterpret_cast<const char*>(message.data()), message.size()}};
    if (hub_->tap) {
      said = hub_->tap(address_.identity, any.identity(), peer->connection_, said.front());
    }
    for (std::string& each : said) {
      ++other->waiting_;
      peer->fabric_->post(Message{other, std::move(each)});
    }
  }

  std::uint64_t open_inlet(Peer& any, std::span<std::byte> memory, const Pool*) override {
    const auto peer = usable(any);
    peer->inlets_[++peer->last_inlet_] = memory;
    return peer->last_inlet_;
  }
  void close_inlet(Peer& any, std::uint64_t inlet) override { usable(any)->inlets_.erase(inlet); }
  void write(Peer& any, std::uint64_t inlet, std::uint64_t offset,
             std::span<const std::byte> bytes) override;
  SharedInlet inlet(Peer& any, std::uint64_t number) override {
    const auto other = usable(any)->other_.lock();
    const auto found = other->inlets_.find(number);
    if (found == other->inlets_.end()) return {};
    return {{other, found->second.data()}, found->second.size()};
  }

  void attach(Peer& any, std::uint64_t region, OpId id, Deadline deadline) override {
    start(id, {Attach{usable(any), region}, deadline});
  }

  void read(Read read, OpId id, Deadline deadline) override {
    auto reading = std::make_unique<Reading>(std::move(read));
    for (const Source& source : reading->read().sources) usable(*source.peer);
    start(id, {RunningRead{std::move(reading), 0, {}}, deadline});
  }
  std::int64_t bytes_read(OpId id) const noexcept override {
    const auto found = operations_.find(id);
    if (found == operations_.end()) return 0;
    const auto* running = std::get_if<RunningRead>(&found->second.work);
    return running == nullptr ? 0 : running->reading->bytes_before(running->next);
  }

  Word make_word(Peer& any, std::uint64_t initial) override {
    const auto peer = usable(any);
    if (peer->words_.size() >= options_.most_words) {
      throw Error(Code::queue_full, "the connection to " + to_string(any.identity()) +
                                        " has used up its words; connect anew");
    }
    peer->words_.emplace_back(initial);
    return {static_cast<std::uint32_t>(peer->words_.size() - 1), &peer->words_.back()};
  }

  void swap(const Swap& swap, OpId id, Deadline deadline) override {
    if (swap.source.peer == nullptr || swap.source.region == nullptr) {
      throw Error(Code::invalid_argument, "a swap without peer or region");
    }
    word_of(*swap.source.peer, swap.word);
    start(id, {swap, deadline});
  }

  const std::atomic<std::uint64_t>* watch(Peer& any, std::uint32_t word) override {
    return options_.watches ? &word_of(any, word) : nullptr;
  }

  void cancel(OpId id) noexcept override {
    if (const auto found = operations_.find(id); found != operations_.end()) {
      found->second.cancelled = true;
      wake_.signal();
    }
  }

  std::span<const Event> poll() override;

  bool arm() override { return !busy(); }
  int fd() const noexcept override { return wake_.get(); }
  TimePoint wake_at() const noexcept override {
    TimePoint earliest = TimePoint::max();
    for (const auto& [id, operation] : operations_) {
      earliest = std::min(earliest, operation.deadline.at());
    }
    return earliest;
  }

  void withdraw(std::uint64_t number) { regions_.erase(number); }

  void break_all(const std::string& name) {
    for (const auto& peer : std::vector(peers_)) {
      if (peer->identity_.name != name) continue;
      if (peer->fabric_ != nullptr) peer->fabric_->lose_messages(*peer->other_.lock());
      lose_messages(*peer);
      disconnect(*peer);
    }
  }
  void visit_gates(const std::byte* memory, const std::function<void(const Gate&)>& visit) const {
    for (const auto& [number, exposed] : regions_) {
      const auto& tensors = exposed->memory.first;
      if (!tensors.empty() && tensors.front() == memory) visit(exposed->gate);
    }
  }
  void visit_regions(const std::function<void(const MemoryExposed&)>& visit) const {
    for (const auto& [number, exposed] : regions_) visit({address_.identity, exposed->forms});
  }
  void visit_words(const std::function<void(const MemoryWord&)>& visit) const {
    for (const auto& peer : peers_) {
      std::uint32_t number = 0;
      for (const auto& word : peer->words_) {
        visit({address_.identity, peer->identity_, peer->connection_, number++, word.load()});
      }
    }
  }

 private:
  bool busy() const noexcept {
    return !posted_.empty() || !connecting_.empty() || !operations_.empty();
  }

  void post(Event event) {
    posted_.push_back(std::move(event));
    wake_.signal();
  }

  std::shared_ptr<MemoryPeer> peer_of(Peer& any) const {
    for (const auto& peer : peers_) {
      if (peer.get() == &any) return peer;
    }
    throw Error(Code::peer_lost, "the connection to " + to_string(any.identity()) + " is over");
  }

  std::shared_ptr<MemoryPeer> usable(Peer& any) const {
    auto peer = peer_of(any);
    if (!peer->up_ || peer->ended_) {
      throw Error(Code::peer_lost, "there is no connection to " + to_string(any.identity()));
    }
    return peer;
  }

  std::atomic<std::uint64_t>& word_of(Peer& any, std::uint32_t word) const {
    const auto other = usable(any)->other_.lock();
    if (word >= other->words_.size()) {
      throw Error(Code::invalid_argument,
                  fmt::format("{} has no word {}", to_string(any.identity()), word));
    }
    return other->words_[word];
  }

  void start(OpId id, Operation operation) {
    if (!operations_.emplace(id, std::move(operation)).second) {
      throw Error(Code::invalid_argument, "an operation with this id is running");
    }
    wake_.signal();
  }

  void finish(OpId id, Status status, std::uint64_t value = 0,
              std::shared_ptr<const RemoteRegion> region = {}) {
    operations_.erase(id);
    post(Completion{id, std::move(status), value, std::move(region)});
  }

  // Some of the last that were on their way from there.
  void lose_messages(const MemoryPeer& peer) {
    if (!options_.loses) return;
    bool lost = false;
    std::erase_if(posted_, [&](const Event& event) {
      const auto* message = std::get_if<Message>(&event);
      if (message == nullptr || message->from.get() != &peer) return false;
      lost = lost || options_.loses(peer.identity_);
      return lost;
    });
  }

  // The operations of a peer end before the peer does.
  void lose(const std::shared_ptr<MemoryPeer>& peer, Status reason) {
    if (peer->ended_) return;
    peer->ended_ = true;
    peer->up_ = false;
    peer->fabric_ = nullptr;
    std::erase_if(connecting_, [&](const Connecting& each) { return each.peer == peer; });
    std::vector<OpId> over;
    for (const auto& [id, operation] : operations_) {
      if (uses(operation, *peer)) over.push_back(id);
    }
    for (const OpId id : over) finish(id, reason);
    post(PeerLost{peer, std::move(reason)});
  }

  static bool uses(const Operation& operation, const Peer& peer) {
    const auto is_of = [&](const Source& source) { return source.peer.get() == &peer; };
    return std::visit(Overloaded{
                          [&](const Attach& attach) { return attach.peer.get() == &peer; },
                          [&](const Swap& swap) { return is_of(swap.source); },
                          [&](const RunningRead& running) {
                            return std::ranges::any_of(running.reading->read().sources, is_of);
                          },
                      },
                      operation.work);
  }

  bool arrives(const Peer& peer) const {
    return !options_.arrives || options_.arrives(peer.identity());
  }
  void let_arrive();
  bool proceeds(const Operation& operation) const {
    return !options_.proceeds || std::ranges::all_of(peers_, [&](const auto& peer) {
      return !uses(operation, *peer) || options_.proceeds(peer->identity_);
    });
  }
  void try_connect(const Connecting& connecting);
  void step(OpId id, Operation& operation);
  void step(OpId id, const Attach& attach);
  void step(OpId id, const Swap& swap);
  void step(OpId id, RunningRead& running);
  static void copy_packed(RunningRead& running);

  std::shared_ptr<MemoryHub> hub_;
  MemoryFabricOptions options_;
  Address address_;
  os::EventFd wake_;
  std::vector<std::shared_ptr<MemoryPeer>> peers_;
  std::vector<Connecting> connecting_;
  std::map<std::uint64_t, std::shared_ptr<Exposed>> regions_;
  std::uint64_t next_region_ = 1;
  std::map<OpId, Operation> operations_;
  std::vector<Event> posted_;
  std::vector<Event> returned_;
};

namespace {

class MemoryRegion final : public Region {
 public:
  MemoryRegion(MemoryFabric& fabric, std::shared_ptr<Exposed> exposed)
      : fabric_(fabric), exposed_(std::move(exposed)) {}
  ~MemoryRegion() override {
    exposed_->withdrawn = true;
    fabric_.withdraw(exposed_->number);
  }
  std::uint64_t number() const noexcept override { return exposed_->number; }
  const Forms& forms() const noexcept override { return exposed_->forms; }
  Gate& gate() noexcept override { return exposed_->gate; }
  // Nothing is packed here: readers see the memory.
  void serve(std::uint64_t, plan::Stream stream) override { check_source(stream, forms()); }

 private:
  MemoryFabric& fabric_;
  std::shared_ptr<Exposed> exposed_;
};

}  // namespace

std::unique_ptr<Region> MemoryFabric::expose(std::span<const TensorView> tensors, Gate gate,
                                             std::shared_ptr<const Lender> lender) {
  auto exposed = std::make_shared<Exposed>(
      Exposed{next_region_++, {}, memory_of(tensors, std::move(lender)), std::move(gate)});
  for (const TensorView& tensor : tensors) {
    exposed->forms.push_back(form_of(tensor));
    extent_of(exposed->forms.back());
  }
  regions_[exposed->number] = exposed;
  return std::make_unique<MemoryRegion>(*this, std::move(exposed));
}

void MemoryFabric::write(Peer& any, std::uint64_t inlet, std::uint64_t offset,
                         std::span<const std::byte> bytes) {
  const auto other = usable(any)->other_.lock();
  if (inlet == 0 || inlet > other->last_inlet_) {
    throw Error(Code::invalid_argument,
                fmt::format("{} has opened no inlet {} for us", to_string(any.identity()), inlet));
  }
  const auto found = other->inlets_.find(inlet);
  if (found == other->inlets_.end()) return;  // closed
  if (offset > found->second.size() || bytes.size() > found->second.size() - offset) {
    throw Error(Code::invalid_argument,
                "a write leads outside of an inlet of " + to_string(any.identity()));
  }
  std::ranges::copy(bytes, found->second.begin() + static_cast<std::ptrdiff_t>(offset));
}

std::span<const Event> MemoryFabric::poll() {
  wake_.drain();
  for (const Connecting& each : std::exchange(connecting_, {})) {
    if (arrives(*each.peer)) {
      try_connect(each);
    } else if (each.deadline.at() <= options_.clock->now()) {
      lose(each.peer, {Code::timeout, to_string(each.remote.identity) + " does not answer"});
    } else {
      connecting_.push_back(each);
    }
  }
  std::vector<OpId> ids;
  for (const auto& [id, operation] : operations_) ids.push_back(id);
  for (const OpId id : ids) step(id, operations_.at(id));
  let_arrive();
  for (const Event& event : returned_) {
    std::visit(
        Overloaded{
            [](const Message& message) { --static_cast<MemoryPeer&>(*message.from).waiting_; },
            [&](const PeerLost& lost) {
              std::erase(peers_, std::static_pointer_cast<MemoryPeer>(lost.peer));
            },
            [](const OneOf<Completion, PeerUp> auto&) {},
        },
        event);
  }
  return returned_;
}

// In order, for each peer.
void MemoryFabric::let_arrive() {
  returned_.clear();
  std::set<const Peer*> late;
  std::erase_if(posted_, [&](Event& event) {
    const Peer* peer =
        std::visit(Overloaded{
                       [](const Message& message) -> const Peer* { return message.from.get(); },
                       [](const OneOf<PeerUp, PeerLost> auto& change) -> const Peer* {
                         return change.peer.get();
                       },
                       [](const Completion&) -> const Peer* { return nullptr; },
                   },
                   event);
    if (peer != nullptr && (late.contains(peer) || !arrives(*peer))) {
      late.insert(peer);
      return false;
    }
    returned_.push_back(std::move(event));
    return true;
  });
}

void MemoryFabric::try_connect(const Connecting& connecting) {
  const auto found = hub_->fabrics.find(connecting.remote.identity.id);
  const std::string name = to_string(connecting.remote.identity);
  if (found == hub_->fabrics.end()) {
    return lose(connecting.peer, {Code::unreachable, name + " does not run"});
  }
  MemoryFabric& remote = *found->second;
  if (remote.address_.identity != connecting.remote.identity) {
    return lose(connecting.peer, {Code::invalid_argument, "another process than " + name +
                                                              " answers; the address is stale"});
  }
  if (remote.options_.secret != connecting.secret) {
    return lose(connecting.peer, {Code::denied, name + " refused our secret"});
  }
  auto accepted = std::make_shared<MemoryPeer>(address_.identity, ++hub_->connections);
  accepted->fabric_ = this;
  accepted->other_ = connecting.peer;
  accepted->up_ = true;
  remote.peers_.push_back(accepted);
  connecting.peer->fabric_ = &remote;
  connecting.peer->other_ = accepted;
  connecting.peer->up_ = true;
  post(PeerUp{connecting.peer});
  remote.post(PeerUp{accepted});
}

void MemoryFabric::step(OpId id, Operation& operation) {
  if (operation.cancelled) return finish(id, {Code::cancelled, "the operation was cancelled"});
  if (operation.deadline.at() <= options_.clock->now()) {
    return finish(id, {Code::timeout, "the deadline passed"});
  }
  if (!proceeds(operation)) return;
  try {
    std::visit([&](auto& work) { step(id, work); }, operation.work);
  } catch (...) {
    finish(id, current_exception_status());
  }
}

void MemoryFabric::step(OpId id, const Attach& attach) {
  const auto found = attach.peer->fabric_->regions_.find(attach.region);
  if (found == attach.peer->fabric_->regions_.end()) {
    return finish(
        id, {Code::withdrawn, fmt::format("{} has no region {} (any more)",
                                          to_string(attach.peer->identity()), attach.region)});
  }
  finish(id, {}, 0, std::make_shared<MemoryRemoteRegion>(found->second));
}

void MemoryFabric::step(OpId id, const Swap& swap) {
  const Exposed& exposed = as_memory(*swap.source.region).exposed();
  if (exposed.withdrawn || !exposed.gate.still_open(swap.source.ticket)) {
    return finish(id, withdrawn(*swap.source.peer));
  }
  std::uint64_t seen = swap.expected;
  word_of(*swap.source.peer, swap.word)
      .compare_exchange_strong(seen, swap.desired, std::memory_order_acq_rel);
  finish(id, {}, seen);
}

void MemoryFabric::copy_packed(RunningRead& running) {
  Reading& reading = *running.reading;
  const Read& read = reading.read();
  std::vector<std::vector<std::byte>> packed;
  std::vector<std::span<const std::byte>> wires;
  for (std::size_t i = 0; i < read.sources.size(); ++i) {
    if (i == running.packers.size()) {
      const Exposed& exposed = as_memory(*read.sources[i].region).exposed();
      const plan::Strides strides = strides_of(exposed.forms);
      running.packers.emplace_back(plan::compile(*read.stream, &strides, nullptr), exposed.memory);
    }
    packed.emplace_back(
        static_cast<std::size_t>(reading.bound().target().chunks[running.next].wire_bytes));
    running.packers[i].gather(running.next, packed.back());
  }
  for (const auto& bytes : packed) wires.emplace_back(bytes);
  reading.scatter(running.next, wires);
}

void MemoryFabric::step(OpId id, RunningRead& running) {
  Reading& reading = *running.reading;
  std::vector<copy::Sources> members;
  bool elsewhere = false;
  for (const Source& source : reading.read().sources) {
    const Exposed& exposed = as_memory(*source.region).exposed();
    if (exposed.withdrawn || !exposed.gate.open(source.ticket)) {
      return finish(id, withdrawn(*source.peer));
    }
    members.emplace_back(exposed.memory.first);
    elsewhere = elsewhere || exposed.memory.lender != nullptr;
  }
  if (running.next < reading.chunk_count()) {
    if (elsewhere) {
      copy_packed(running);
    } else {
      reading.copy(running.next, members);
    }
    if (++running.next < reading.chunk_count()) return;
  }
  for (const Source& source : reading.read().sources) {
    if (!as_memory(*source.region).exposed().gate.still_open(source.ticket)) {
      return finish(id, withdrawn(*source.peer));
    }
  }
  finish(id, {});
}

std::shared_ptr<MemoryHub> make_memory_hub() { return std::make_shared<MemoryHub>(); }

void visit_regions(const MemoryHub& hub, const std::function<void(const MemoryExposed&)>& visit) {
  for (const auto& [id, fabric] : hub.fabrics) fabric->visit_regions(visit);
}

void visit_words(const MemoryHub& hub, const std::function<void(const MemoryWord&)>& visit) {
  for (const auto& [id, fabric] : hub.fabrics) fabric->visit_words(visit);
}

void visit_gates(const MemoryHub& hub, const std::byte* memory,
                 const std::function<void(const Gate&)>& visit) {
  for (const auto& [id, fabric] : hub.fabrics) fabric->visit_gates(memory, visit);
}

void tap_messages(MemoryHub& hub, MessageTap tap) { hub.tap = std::move(tap); }

void break_connections(MemoryHub& hub, const std::string& one, const std::string& other) {
  for (const auto& [id, fabric] : hub.fabrics) {
    if (fabric->address().identity.name == one) fabric->break_all(other);
  }
}

std::unique_ptr<Fabric> make_memory_fabric(std::shared_ptr<MemoryHub> hub,
                                           MemoryFabricOptions options) {
  return std::make_unique<MemoryFabric>(std::move(hub), std::move(options));
}

}  // namespace tensorbus::fabric
