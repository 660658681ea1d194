#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/log.h"
#include "fabric/ucx/address.h"
#include "fabric/ucx/admission.h"
#include "fabric/ucx/client.h"
#include "fabric/ucx/server.h"
#include "fabric/ucx/ucx.h"

namespace tensorbus::fabric {
namespace ucx {
namespace {

// Packing in one poll(): about a millisecond.
constexpr std::size_t pump_bytes = std::size_t{1} << 20;
constexpr int rounds_per_poll = 16;
// What send() lets wait for a peer that does not take it.
constexpr std::size_t max_message_bytes_waiting = std::size_t{4} << 20;
constexpr std::size_t max_messages_waiting = 256;
// Callers that have not proven themselves. More are dropped, and call again.
constexpr std::size_t max_greetings = 256;
constexpr Duration between_looks_at_devices = std::chrono::microseconds(200);
// How long a goodbye may take to leave.
constexpr Duration goodbye_time = std::chrono::milliseconds(200);

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Status ended_here() { return {Code::cancelled, "the connection was closed here"}; }

class UcxFabric final : public Fabric, private Receiver {
 public:
  explicit UcxFabric(const UcxOptions& options)
      : options_(options),
        address_{options.identity, "ucx", {}},
        copiers_(options.open_device),
        server_(copiers_),
        client_(options.window, copiers_),
        worker_({options.bind, effective(options.ports)}, *this),
        admission_(options.hosts, worker_.listener()),
        home_{worker_, outbox_, *options_.clock, options_.identity} {
    address_.where = worker_.address();
  }

  ~UcxFabric() override {
    for (auto& [stream, connection] : connections_) part_from(connection, ended_here());
    connections_.clear();
    // Real time, whatever clock the fabric was given: nobody moves a simulated one while the fabric
    // waits. Not until all is flushed, which takes an answer of the peer: the sockets close with
    // the worker, and that tells it too.
    const Deadline latest = Deadline::after(goodbye_time);
    const auto sending = [](const Leaving& leaving) {
      return leaving.connection->sends_under_way() > 0;
    };
    while (std::ranges::any_of(leaving_, sending) && !latest.expired()) worker_.progress();
    for (Leaving& leaving : leaving_) leaving.connection->hang_up();
  }

  const Address& address() const noexcept override { return address_; }

  Gate make_gate() override { return Gate(std::make_shared<std::atomic<std::uint64_t>>(0)); }
  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                 std::shared_ptr<const Lender> lender) override {
    return server_.expose(tensors, std::move(gate), std::move(lender));
  }

  std::shared_ptr<Peer> connect(const Address& remote, const std::string& secret,
                                Deadline deadline) override {
    if (remote.kind != address_.kind) {
      throw Error(
          Code::invalid_argument,
          fmt::format("an address of kind \"{}\" was given to the network fabric", remote.kind));
    }
    auto connection = std::make_shared<Connection>(home_, remote, secret, deadline);
    connections_.emplace(connection->stream(), connection);
    return connection;
  }

  void disconnect(Peer& peer) override { connection_of(peer).lose(ended_here()); }
  void admit(const std::string& who, const std::optional<Address>& address) override {
    admission_.admit(who, address ? unpack(address->where).hosts : std::vector<os::IpAddress>());
  }

  void send(Peer& peer, std::span<const std::byte> message) override {
    Connection& connection = live_connection_of(peer);
    if (message.size() > max_message_bytes) {
      throw Error(Code::invalid_argument, fmt::format("a message of {} bytes; at most {} fit",
                                                      message.size(), max_message_bytes));
    }
    if (connection.bytes_under_way() + message.size() > max_message_bytes_waiting ||
        connection.sends_under_way() >= max_messages_waiting) {
      throw Error(Code::queue_full,
                  fmt::format("{} does not take its messages", connection.description()));
    }
    connection.send(Kind::message, 0, 0, text_of(message));
  }

  std::uint64_t open_inlet(Peer& peer, std::span<std::byte> memory, const Pool*) override {
    return server_.open_inlet(live_connection_of(peer), memory);
  }
  void close_inlet(Peer& peer, std::uint64_t inlet) override {
    server_.close_inlet(live_connection_of(peer), inlet);
  }
  void write(Peer& peer, std::uint64_t inlet, std::uint64_t offset,
             std::span<const std::byte> bytes) override {
    Connection& connection = live_connection_of(peer);
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(bytes.size(), max_body_bytes));
      connection.send(Kind::write, inlet, offset, text_of(part));
      offset += part.size();
      bytes = bytes.subspan(part.size());
    }
  }
  SharedInlet inlet(Peer&, std::uint64_t) override { return {}; }

  void attach(Peer& peer, std::uint64_t region, OpId id, Deadline deadline) override {
    Connection& connection = live_connection_of(peer);
    client_.attach(connections_.at(connection.stream()), region, id, deadline);
  }
  void read(Read read, OpId id, Deadline deadline) override {
    client_.read(std::move(read), id, deadline);
  }
  std::int64_t bytes_read(OpId id) const noexcept override { return client_.bytes_read(id); }
  Word make_word(Peer& peer, std::uint64_t initial) override {
    return server_.make_word(live_connection_of(peer), initial);
  }
  void swap(const Swap& swap, OpId id, Deadline deadline) override {
    client_.swap(swap, id, deadline);
  }
  const std::atomic<std::uint64_t>* watch(Peer&, std::uint32_t) override { return nullptr; }
  void cancel(OpId id) noexcept override { client_.cancel(id); }

  std::span<const Event> poll() override;
  bool arm() override {
    return !more_to_pack_ && !client_.has_completions() && arrived_.empty() && !anyone_lost() &&
           worker_.arm();
  }
  int fd() const noexcept override { return worker_.event_fd(); }
  TimePoint wake_at() const noexcept override {
    TimePoint first = client_.next_deadline();
    // Not by the descriptors of devices: one more set of descriptors around UCX's own sets would be
    // one more than the kernel allows.
    if (client_.waits_for_device() || server_.waits_for_device()) {
      first = std::min(first, options_.clock->now() + between_looks_at_devices);
    }
    for (const auto& [stream, connection] : connections_) {
      first = std::min(first, connection->next_tick());
    }
    for (const Leaving& leaving : leaving_) first = std::min(first, leaving.latest);
    return first;
  }

 private:
  // Our last words are on their way.
  struct Leaving {
    std::shared_ptr<Connection> connection;
    TimePoint latest;
  };

  void received(std::span<const std::byte> header,
                std::span<const std::byte> payload) noexcept override;
  void answer(const Frame& frame, std::string_view body);
  void dispatch(const std::shared_ptr<Connection>& peer, const Frame& frame,
                std::span<const std::byte> payload);
  void collect_completions();
  void end_lost_connections(TimePoint now);
  void hang_up_where_flushed(TimePoint now);
  void part_from(const std::shared_ptr<Connection>& connection, const Status& reason);

  Connection& connection_of(Peer& peer) {
    auto* connection = dynamic_cast<Connection*>(&peer);
    if (connection == nullptr) {
      throw Error(Code::invalid_argument, "a peer of another fabric was given to the network's");
    }
    return *connection;
  }
  Connection& live_connection_of(Peer& peer) {
    Connection& connection = connection_of(peer);
    if (!connection.up()) {
      throw Error(Code::peer_lost,
                  fmt::format("there is no connection to {}", connection.description()));
    }
    return connection;
  }
  bool anyone_lost() const {
    return std::ranges::any_of(connections_,
                               [](const auto& entry) { return entry.second->lost().has_value(); });
  }

  const UcxOptions options_;
  Address address_;
  device::Copiers copiers_;
  Server server_;
  Client client_;
  Outbox outbox_;  // outlives the worker
  Worker worker_;
  Admission admission_;
  Home home_;
  std::map<std::uint64_t, std::shared_ptr<Connection>> connections_;
  std::vector<Leaving> leaving_;
  bool more_to_pack_ = false;
  std::vector<Event> arrived_;  // since the last poll
  std::vector<Event> events_;   // of the last poll
};

void UcxFabric::received(std::span<const std::byte> header,
                         std::span<const std::byte> payload) noexcept try {
  const Frame frame = decode_frame(header);
  if (frame.kind == Kind::hello && frame.stream == 0) {
    answer(frame, text_of(payload));
    return;
  }
  const auto found = connections_.find(frame.stream);
  // After a forced close the peer's old messages still arrive.
  if (found == connections_.end()) return;
  const std::shared_ptr<Connection> peer = found->second;
  if (!peer->accept(frame)) return;
  try {
    dispatch(peer, frame, payload);
  } catch (...) {
    peer->lose_for("sent what we cannot use: " + current_exception_status().message);
  }
} catch (...) {
  log::warn("a message from the network was dropped: {}", current_exception_status().message);
}

void UcxFabric::answer(const Frame& frame, std::string_view body) {
  if (frame.sequence != 1) throw Error(Code::failed, "a hello that is not the first message");
  const Hello hello = decode_hello(body);
  const auto greetings = std::ranges::count_if(connections_, [](const auto& entry) {
    return !entry.second->is_caller() && !entry.second->up();
  });
  if (static_cast<std::size_t>(greetings) >= max_greetings) {
    throw Error(Code::queue_full, "too many callers at once");
  }
  auto connection = std::make_shared<Connection>(home_, hello, options_.secret);
  connections_.emplace(connection->stream(), std::move(connection));
}

void UcxFabric::dispatch(const std::shared_ptr<Connection>& peer, const Frame& frame,
                         std::span<const std::byte> payload) {
  const std::string_view body = text_of(payload);
  if (frame.kind == Kind::heartbeat) return;
  if (!peer->up() || frame.kind <= Kind::refused || frame.kind == Kind::goodbye) {
    peer->greet(frame, body);
    if (!peer->up()) return;
    worker_.keep_from_programs();
    arrived_.emplace_back(PeerUp{peer});
    return;
  }
  switch (frame.kind) {
    case Kind::message:
      // Completions that came before the message go out before the message.
      collect_completions();
      arrived_.emplace_back(Message{peer, std::string(body)});
      break;
    case Kind::attach:
      server_.attach(*peer, frame.number, frame.index);
      break;
    case Kind::ask:
      server_.ask(peer, frame.number, decode_ask(body));
      break;
    case Kind::credit:
      server_.credit(*peer, frame.number, frame.index);
      break;
    case Kind::cancel_read:
      server_.cancel(*peer, frame.number);
      break;
    case Kind::swap:
      server_.swap(*peer, frame.number, decode_swap(body));
      break;
    case Kind::write:
      server_.write(*peer, frame.number, frame.index, payload);
      break;
    case Kind::forms:
      client_.forms(*peer, frame, body);
      break;
    case Kind::failed:
      client_.failed(*peer, frame, body);
      break;
    case Kind::fragment:
      client_.fragment(*peer, frame, payload);
      break;
    case Kind::served:
      client_.served(*peer, frame, body);
      break;
    case Kind::swapped:
      client_.swapped(*peer, frame, body);
      break;
    default:
      throw Error(Code::failed, "a message out of turn");
  }
}

void UcxFabric::collect_completions() {
  for (Completion& completion : client_.take_completions()) {
    arrived_.emplace_back(std::move(completion));
  }
}

std::span<const Event> UcxFabric::poll() {
  admission_.apply();
  for (int i = 0; i < rounds_per_poll; ++i) {
    const bool progressed = worker_.progress();
    more_to_pack_ = server_.pump(pump_bytes);
    if (more_to_pack_ || !progressed) break;
  }
  const TimePoint now = options_.clock->now();
  client_.expire(now);
  for (const auto& [stream, connection] : connections_) connection->tick(now);
  end_lost_connections(now);
  if (client_.waits_for_device()) client_.look_at_devices();
  collect_completions();
  events_ = std::exchange(arrived_, {});
  return events_;
}

void UcxFabric::end_lost_connections(TimePoint now) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    const std::shared_ptr<Connection> connection = at->second;
    if (!connection->lost()) {
      ++at;
      continue;
    }
    at = connections_.erase(at);
    const Status reason = *connection->lost();
    client_.forget(*connection, reason);
    server_.forget(*connection);
    collect_completions();
    if (connection->known_to_user()) arrived_.emplace_back(PeerLost{connection, reason});
    log::debug("connection to {} ended: {}", connection->description(), reason.message);
    part_from(connection, reason);
  }
  hang_up_where_flushed(now);
}

void UcxFabric::hang_up_where_flushed(TimePoint now) {
  std::erase_if(leaving_, [now](Leaving& leaving) {
    if (!leaving.connection->flushed() && now < leaving.latest) return false;
    leaving.connection->hang_up();
    return true;
  });
}

void UcxFabric::part_from(const std::shared_ptr<Connection>& connection, const Status& reason) {
  connection->lose(reason);
  if (connection->tell_peer()) connection->send(Kind::goodbye, 0, 0, encode(reason));
  leaving_.push_back({connection, options_.clock->now() + goodbye_time});
}

}  // namespace
}  // namespace ucx

std::unique_ptr<Fabric> make_ucx_fabric(const UcxOptions& options) {
  return std::make_unique<ucx::UcxFabric>(options);
}

bool has_ucx() noexcept {
  try {
    ucx::library();
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string describe_ucx() {
  try {
    return std::string("UCX ") + ucx::library().ucp_get_version_string();
  } catch (const Error& none) {
    return none.what();
  }
}

UcxReport ucx_report() {
  if (!has_ucx()) return {};
  return {ucx::library().ucp_get_version_string(), ucx::library().file, ucx::transports()};
}

}  // namespace tensorbus::fabric
