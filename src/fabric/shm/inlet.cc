// Memory that peers write into: that of this process, which peers are given, and that of peers,
// which this process is given.
#include <cstring>

#include "base/bytes.h"
#include "fabric/shm/core.h"

namespace tensorbus::fabric {

std::uint64_t ShmCore::open_inlet(Peer& any, std::span<std::byte> memory, const Pool* pool) {
  const PeerPtr peer = usable(any);
  const auto place = pool == nullptr ? std::nullopt : pool->find(memory.data(), memory.size());
  if (!place) {
    throw Error(Code::invalid_argument,
                "processes of one host write only into memory of the pool that is given");
  }
  const std::uint64_t number = ++peer->inlets_opened;
  Encoder packed;
  packed.integer(number).integer(place->offset).integer(std::uint64_t{memory.size()});
  post(peer, packet(PacketKind::inlet, packed.bytes()),
       std::make_shared<os::Fd>(pool->lend(place->segment)));
  // Descriptors go through the socket and messages through the ring: this says where, among the
  // messages, the inlet belongs.
  peer->push(inlet_message, std::move(Encoder().integer(number)).bytes());
  return number;
}

void ShmCore::close_inlet(Peer& any, std::uint64_t inlet) {
  post(usable(any), packet(PacketKind::inlet_closed, std::move(Encoder().integer(inlet)).bytes()));
}

void ShmCore::on_inlet(const PeerPtr& peer, std::string_view body, std::vector<os::Fd> fds) {
  Decoder decoder(body);
  const auto number = decoder.integer<std::uint64_t>();
  const auto offset = decoder.integer<std::uint64_t>();
  const auto bytes = decoder.integer<std::uint64_t>();
  decoder.end();
  if (fds.size() != 1) throw Error(Code::failed, "it sent an inlet without memory");
  const std::size_t size = os::checked_memfd_size(fds.front());
  if (number != peer->last_inlet + 1 || offset > size || bytes > size - offset) {
    throw Error(Code::failed, "an inlet leads outside of its memory, or is out of turn");
  }
  auto segment = std::make_shared<const os::Mapping>(os::map(fds.front(), size, true, true));
  std::byte* const first = segment->data() + offset;
  peer->inlets.emplace(number, ShmPeer::Inlet{std::move(segment), first, bytes});
  peer->last_inlet = number;
}

void ShmCore::on_inlet_closed(const PeerPtr& peer, std::string_view body) {
  Decoder decoder(body);
  peer->inlets.erase(decoder.integer<std::uint64_t>());
  decoder.end();
}

bool ShmCore::has_awaited_inlet(const PeerPtr& peer) {
  // From the socket of a peer that leaves nothing more is read: a read would lead here again.
  if (peer->awaited_inlet > peer->last_inlet && !peer->leaves) on_socket(peer);
  return peer->up() && peer->awaited_inlet <= peer->last_inlet;
}

void ShmCore::write(Peer& any, std::uint64_t inlet, std::uint64_t offset,
                    std::span<const std::byte> bytes) {
  const PeerPtr peer = usable(any);
  if (inlet == 0 || inlet > peer->last_inlet) {
    throw Error(Code::invalid_argument, to_string(any.identity()) + " has opened no inlet " +
                                            std::to_string(inlet) + " for us");
  }
  const auto found = peer->inlets.find(inlet);
  if (found == peer->inlets.end()) return;  // closed
  if (offset > found->second.bytes || bytes.size() > found->second.bytes - offset) {
    throw Error(Code::invalid_argument,
                "a write leads outside of an inlet of " + to_string(any.identity()));
  }
  if (!bytes.empty()) std::memcpy(found->second.first + offset, bytes.data(), bytes.size());
}

SharedInlet ShmCore::inlet(Peer& any, std::uint64_t number) {
  const PeerPtr peer = usable(any);
  const auto found = peer->inlets.find(number);
  if (found == peer->inlets.end()) return {};
  const ShmPeer::Inlet& inlet = found->second;
  return {{inlet.segment, inlet.first}, inlet.bytes};
}

}  // namespace tensorbus::fabric
