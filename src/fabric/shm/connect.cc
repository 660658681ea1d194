// How connections begin and end.
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "fabric/shm/core.h"
#include "os/process/fork.h"
#include "os/process/process.h"

namespace tensorbus::fabric {
namespace {

constexpr std::uint64_t listener_tag = 0;
constexpr std::uint64_t doorbell_tag = 1;
constexpr std::size_t most_spare_bodies = 64;
constexpr std::size_t first_spare_bodies = 8;
constexpr std::size_t usual_body_bytes = 512;
constexpr Duration greeting_time = std::chrono::seconds(5);
constexpr Duration between_knocks = std::chrono::milliseconds(2);
constexpr int most_accepted_at_once = 64;

std::uint64_t socket_tag(const ShmPeer& peer) { return 2 * peer.serial; }
std::uint64_t pidfd_tag(const ShmPeer& peer) { return 2 * peer.serial + 1; }

bool may_read_memory(const ShmPeer& peer) {
  Id16 found{};
  const iovec local{found.data(), found.size()};
  const iovec remote{reinterpret_cast<void*>(peer.probe), found.size()};
  return peer.pid != 0 && os::read_process_memory(peer.pid, {&local, 1}, {&remote, 1}) == 0 &&
         found == peer.identity().id;
}

}  // namespace

ShmCore::ShmCore(ShmOptions options)
    : options_(std::move(options)),
      copiers_(options_.open_device, [this](int fd) { watch(fd, device_tag, EPOLLIN | EPOLLET); }) {
  if (options_.pool == nullptr) {
    options_.pool = std::make_shared<Pool>(PoolOptions{std::size_t{1} << 20});
  }
  const Id16 id = random_id();
  address_.identity = {os::host_key(), ::getpid(), os::own_start_time(), id, options_.name};
  address_.kind = "shm";
  address_.where = "tensorbus-" + to_hex(view(random_id()));
  epoll_ = os::Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) os::throw_errno("epoll_create1");
  listener_ = os::listen_unix(address_.where);
  for (const int fd : {epoll_.get(), listener_.get(), doorbell_.get()}) os::close_in_children(fd);
  watch_descriptor(listener_.get(), listener_tag);
  watch(doorbell_.get(), doorbell_tag, EPOLLIN | EPOLLET);
  spare_bodies_.reserve(most_spare_bodies);
  // Later, one body more than ever before would be allocated in the middle of a round trip.
  taken_.body.reserve(usual_body_bytes);
  for (std::size_t i = 0; i < first_spare_bodies; ++i) {
    spare_bodies_.emplace_back().reserve(usual_body_bytes);
  }
  last_poll_ = options_.clock->now();
  next_pulse_ = last_poll_;
}

ShmCore::~ShmCore() {
  for (const auto& [serial, peer] : peers_) {
    if (peer->up()) peer->post(packet(PacketKind::bye, ""));
  }
  // Readings give their slots back to peers, which must still be there.
  operations_.clear();
  for (const auto& [serial, peer] : peers_) peer->fabric = nullptr;
  polled_.clear();
  peers_.clear();
  for (const int fd : {epoll_.get(), listener_.get(), doorbell_.get()}) os::forget_in_children(fd);
}

void ShmCore::watch_descriptor(int fd, std::uint64_t tag, bool writable) {
  watch(fd, tag, writable ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void ShmCore::watch(int fd, std::uint64_t tag, std::uint32_t what) {
  epoll_event event{};
  event.events = what;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) os::throw_errno("epoll_ctl");
}

Greeting ShmCore::greeting() const {
  return {address_.identity, reinterpret_cast<std::uint64_t>(address_.identity.id.data()),
          random_id()};
}

ShmCore::PeerPtr ShmCore::add_peer(ShmPeer::Stage stage, Identity identity, os::Fd socket,
                                   Deadline deadline) {
  const std::uint64_t serial = ++last_serial_;
  auto peer =
      std::make_shared<ShmPeer>(serial, stage, std::move(identity), std::move(socket), deadline);
  peer->fabric = this;
  peers_[serial] = peer;
  peers_changed_ = true;
  if (peer->socket()) watch_descriptor(peer->socket().get(), socket_tag(*peer));
  return peer;
}

std::shared_ptr<Peer> ShmCore::connect(const Address& remote, const std::string& secret,
                                       Deadline deadline) {
  const PeerPtr peer = add_peer(ShmPeer::Stage::knocking, remote.identity, {}, deadline);
  peer->connector = true;
  peer->secret = secret;
  peer->where = remote.where;
  if (remote.kind != "shm") {
    lose(peer, {Code::invalid_argument,
                "cannot connect to " + to_string(remote.identity) + ": this is no address of shm"});
  } else if (remote.identity.host != address_.identity.host) {
    lose(peer, {Code::unreachable, "cannot connect to " + to_string(remote.identity) +
                                       ": it is on another host or in another network namespace"});
  } else {
    knock(peer);
  }
  return peer;
}

// The callers that fill the other's backlog are accepted or sent away in a moment.
void ShmCore::knock(const PeerPtr& peer) {
  try {
    os::Fd socket = os::connect_unix(peer->where);
    peer->knocks_at = socket ? TimePoint::max() : options_.clock->now() + between_knocks;
    if (!socket) return;
    check_identity(check_credentials(socket), peer->identity());
    peer->set_socket(std::move(socket));
    say_hello(peer);
  } catch (...) {
    const Status why = current_exception_status();
    lose(peer, {why.code, "cannot connect to " + to_string(peer->identity()) + ": " + why.message});
  }
}

void ShmCore::say_hello(const PeerPtr& peer) {
  watch_descriptor(peer->socket().get(), socket_tag(*peer));
  peer->stage = ShmPeer::Stage::challenged;
  peer->hello = encode(Hello{greeting(), peer->identity()});
  post(peer, packet(PacketKind::hello, peer->hello));
}

// Not all callers that wait: a crowd of strangers must not keep the loop.
void ShmCore::accept_some() {
  // The last poll may be long ago; whoever comes has its time from now on.
  tell_time();
  for (int count = 0; count < most_accepted_at_once; ++count) {
    try {
      os::Fd socket = os::accept_unix(listener_, shortage_, last_poll_);
      if (!socket) break;
      welcome(std::move(socket));
    } catch (const Error& error) {
      log::warn("shm: a connection is not accepted: {}", error.what());
      break;
    }
  }
  if (shortage_.until() != TimePoint::max()) watch(listener_.get(), listener_tag, 0);
}

void ShmCore::welcome(os::Fd socket) {
  pid_t pid = 0;
  try {
    pid = check_credentials(socket);
  } catch (const Error& error) {
    log::debug("shm: {}", error.what());
    os::send_packet(socket, packet(PacketKind::refuse, encode(error.status())));
    return;
  }
  add_peer(ShmPeer::Stage::greeting, {}, std::move(socket), Deadline(last_poll_ + greeting_time))
      ->pid = pid;
}

void ShmCore::on_socket(const PeerPtr& peer) {
  try {
    if (!peer->flush()) return lose_after_its_last_words(peer, "closed the connection or died");
    if (!peer->has_unsent()) watch_descriptor(peer->socket().get(), socket_tag(*peer));
    while (peer->stage != ShmPeer::Stage::lost) {
      os::Packet received;
      const os::PacketResult result = os::receive_packet(peer->socket(), received);
      if (result == os::PacketResult::would_block) return;
      if (result == os::PacketResult::closed) {
        return lose_after_its_last_words(peer, "closed the connection or died");
      }
      on_packet(peer, std::move(received));
    }
  } catch (...) {
    const Status status = current_exception_status();
    refuse(peer, {status.code == Code::failed ? Code::peer_lost : status.code,
                  to_string(peer->identity()) + ": " + status.message});
  }
}

void ShmCore::on_packet(const PeerPtr& peer, os::Packet received) {
  using Stage = ShmPeer::Stage;
  const auto kind = static_cast<PacketKind>(received.bytes.front());
  const std::string_view body = std::string_view(received.bytes).substr(1);
  const Stage stage = peer->stage;
  if (kind == PacketKind::hello && stage == Stage::greeting) return on_hello(peer, body);
  if (kind == PacketKind::challenge && stage == Stage::challenged) return on_challenge(peer, body);
  if (kind == PacketKind::proof && stage == Stage::proving) {
    return on_proof(peer, body, std::move(received.fds));
  }
  if (kind == PacketKind::accept && stage == Stage::accepting) {
    return on_accept(peer, body, std::move(received.fds));
  }
  if (kind == PacketKind::refuse && stage != Stage::up) {
    Status status = decode_status(body);
    return lose(peer, std::move(status));
  }
  if (stage != Stage::up) throw Error(Code::failed, "it does not keep to the handshake");
  switch (kind) {
    case PacketKind::attach:
      return on_attach(peer, body);
    case PacketKind::segment:
      return on_segment(peer, body, std::move(received.fds));
    case PacketKind::segment_gone:
      return on_segment_gone(peer, body);
    case PacketKind::lender:
      return on_lender(peer, body, std::move(received.fds));
    case PacketKind::table:
      return on_table(peer, body);
    case PacketKind::no_region:
      return on_no_region(peer, body);
    case PacketKind::want_window:
      return on_want_window(peer);
    case PacketKind::window:
      return on_window(peer, std::move(received.fds));
    case PacketKind::inlet:
      return on_inlet(peer, body, std::move(received.fds));
    case PacketKind::inlet_closed:
      return on_inlet_closed(peer, body);
    case PacketKind::bye:
      return lose_after_its_last_words(peer, "disconnected");
    default:
      throw Error(Code::failed, "it sent a packet of unknown kind");
  }
}

void ShmCore::on_hello(const PeerPtr& peer, std::string_view body) {
  const Hello hello = decode_hello(body);
  peer->set_identity(hello.from.self);
  if (hello.to != address_.identity) {
    return refuse(peer, {Code::invalid_argument,
                         "another process than " + to_string(hello.to) +
                             " answers; the address is stale: " + to_string(address_.identity)});
  }
  check_identity(peer->pid, hello.from.self);
  peer->probe = hello.from.probe;
  peer->hello = body;
  peer->challenge = encode(greeting());
  peer->stage = ShmPeer::Stage::proving;
  post(peer, packet(PacketKind::challenge, peer->challenge));
}

void ShmCore::on_challenge(const PeerPtr& peer, std::string_view body) {
  const Greeting owner = decode_greeting(body);
  if (owner.self != peer->identity()) {
    throw Error(Code::invalid_argument, "another process answers; the address is stale");
  }
  peer->pid = check_credentials(peer->socket());
  peer->probe = owner.probe;
  peer->challenge = body;
  const auto file = std::make_shared<os::Fd>(ShmConduit::make_file());
  peer->conduit = std::make_unique<ShmConduit>(*file, ShmConduit::Half::connector);
  peer->stage = ShmPeer::Stage::accepting;
  post(peer, packet(PacketKind::proof, connector_proof(peer->secret, peer->hello, body)), file);
}

void ShmCore::on_proof(const PeerPtr& peer, std::string_view proof, std::vector<os::Fd> fds) {
  if (!proofs_equal(proof, connector_proof(options_.secret, peer->hello, peer->challenge))) {
    return refuse(peer, {Code::denied, to_string(address_.identity) +
                                           " refused our secret; it must be the one it was given"});
  }
  if (fds.size() != 1) throw Error(Code::failed, "it sent no memory for the connection");
  peer->conduit = std::make_unique<ShmConduit>(fds.front(), ShmConduit::Half::acceptor);
  const std::string answer = acceptor_proof(options_.secret, peer->hello, peer->challenge);
  post(peer, packet(PacketKind::accept, answer),
       std::make_shared<os::Fd>(os::duplicate(doorbell_.get())));
  if (peer->stage == ShmPeer::Stage::proving) peer->stage = ShmPeer::Stage::accepting;
}

void ShmCore::on_accept(const PeerPtr& peer, std::string_view proof, std::vector<os::Fd> fds) {
  if (fds.size() != 1 || !os::is_eventfd(fds.front())) {
    throw Error(Code::failed, "it sent no doorbell");
  }
  peer->doorbell = std::move(fds.front());
  if (peer->connector) {
    if (!proofs_equal(proof, acceptor_proof(peer->secret, peer->hello, peer->challenge))) {
      throw Error(Code::denied, "it does not know its own secret; it is not to be trusted");
    }
    // The acceptor's turn: with the doorbell of this process the acceptor is up too.
    post(peer, packet(PacketKind::accept, ""),
         std::make_shared<os::Fd>(os::duplicate(doorbell_.get())));
  }
  come_up(peer);
}

void ShmCore::come_up(const PeerPtr& peer) {
  if (peer->stage == ShmPeer::Stage::lost) return;
  if (peer->pid != 0) {
    peer->pidfd = os::open_pidfd(peer->pid);
    watch_descriptor(peer->pidfd.get(), pidfd_tag(*peer));
    // Between the look at the start time and the pidfd the pid could have changed hands.
    check_identity(peer->pid, peer->identity());
  }
  peer->memory_readable = options_.read_process_memory && may_read_memory(*peer);
  peer->last_sign = last_poll_;
  peer->stage = ShmPeer::Stage::up;
  posted_.emplace_back(PeerUp{peer});
  log::debug("shm: {} is connected, private memory is {}", to_string(peer->identity()),
             peer->memory_readable ? "readable" : "packed by its owner");
}

void ShmCore::post(const PeerPtr& peer, std::string bytes, std::shared_ptr<os::Fd> fd) {
  if (!peer->post(std::move(bytes), std::move(fd))) return;  // the hang-up is seen when it is read
  if (peer->has_unsent()) watch_descriptor(peer->socket().get(), socket_tag(*peer), true);
}

void ShmCore::refuse(const PeerPtr& peer, const Status& why) {
  if (peer->stage == ShmPeer::Stage::lost) return;
  if (!peer->up()) peer->post(packet(PacketKind::refuse, encode(why)));
  lose(peer, why);
}

void ShmCore::disconnect(Peer& any) {
  for (const auto& [serial, peer] : peers_) {
    if (peer.get() != &any) continue;
    if (peer->up()) peer->post(packet(PacketKind::bye, ""));
    const PeerPtr kept = peer;
    return lose(kept, {Code::cancelled, "disconnected from " + to_string(any.identity())});
  }
}

void ShmCore::lose_after_its_last_words(const PeerPtr& peer, const std::string& what) {
  peer->leaves = true;
  for (int i = 0; i < 1000 && peer->up() && !peer->conduit->in.empty(); ++i) take_messages(peer);
  lose(peer, {Code::peer_lost, to_string(peer->identity()) + " " + what});
}

void ShmCore::lose(const PeerPtr& peer, Status reason) {
  if (peers_.erase(peer->serial) == 0) return;
  peers_changed_ = true;
  // Users of the fabric know the peers that they connect to and those that came up.
  const bool known = peer->up() || peer->connector;
  std::vector<OpId> over;
  for (const auto& [id, operation] : operations_) {
    if (uses(operation, *peer)) over.push_back(id);
  }
  for (const OpId id : over) end(id, operations_.at(id), reason);
  // By hand: a forked child that has the descriptor would keep the descriptor in the set.
  for (const int fd : {peer->socket().get(), peer->pidfd.get()}) {
    if (fd >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
  peer->close();
  log::debug("shm: lost {}: {}", to_string(peer->identity()), reason.message);
  if (known) posted_.emplace_back(PeerLost{peer, std::move(reason)});
}

}  // namespace tensorbus::fabric
