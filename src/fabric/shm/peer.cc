#include "fabric/shm/peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/bytes.h"
#include "os/process/fork.h"

namespace tensorbus::fabric {

std::string encode(const Ask& ask) {
  Encoder encoder;
  encoder.integer(ask.request).integer(ask.region).integer(ask.stream).integer(ask.ticket);
  encoder.integer(ask.chunk).integer(ask.slot);
  return std::move(encoder).bytes();
}

Ask decode_ask(std::string_view bytes) {
  Decoder decoder(bytes);
  Ask ask;
  ask.request = decoder.integer<std::uint64_t>();
  ask.region = decoder.integer<std::uint64_t>();
  ask.stream = decoder.integer<std::uint64_t>();
  ask.ticket = decoder.integer<std::uint64_t>();
  ask.chunk = decoder.integer<std::uint32_t>();
  ask.slot = decoder.integer<std::uint8_t>();
  decoder.end();
  return ask;
}

std::uint64_t* ShmPeer::slot_of(std::uint64_t request) noexcept {
  if (request == 0) return nullptr;
  if (auto* const slot = std::ranges::find(slots, request); slot != std::end(slots)) return slot;
  auto* const slot = std::ranges::find(peer_device_window.slots, request);
  return slot != std::end(peer_device_window.slots) ? slot : nullptr;
}

ShmPeer::ShmPeer(std::uint64_t number, Stage first, Identity identity, os::Fd socket,
                 Deadline until)
    : serial(number), stage(first), deadline(until), identity_(std::move(identity)) {
  set_socket(std::move(socket));
}

ShmPeer::~ShmPeer() { close(); }

void ShmPeer::set_socket(os::Fd socket) {
  socket_ = std::move(socket);
  if (socket_) os::close_in_children(socket_.get());
}

void ShmPeer::close() noexcept {
  stage = Stage::lost;
  if (socket_) {
    os::forget_in_children(socket_.get());
    ::shutdown(socket_.get(), SHUT_RDWR);
    socket_.reset();
  }
  pidfd.reset();
  doorbell.reset();
  window_file.reset();
}

bool ShmPeer::post(std::string bytes, std::shared_ptr<os::Fd> fd) {
  outbox_.push_back({std::move(bytes), std::move(fd)});
  return flush();
}

bool ShmPeer::flush() {
  while (!outbox_.empty()) {
    const Outgoing& next = outbox_.front();
    const std::vector<int> fds = next.fd ? std::vector<int>{next.fd->get()} : std::vector<int>{};
    const os::PacketResult sent = os::send_packet(socket_, next.bytes, fds);
    if (sent == os::PacketResult::would_block) return true;
    if (sent == os::PacketResult::closed) return false;
    outbox_.pop_front();
  }
  return true;
}

void ShmPeer::push(std::uint8_t kind, std::string body) {
  if (ring_outbox_.empty() && push_now(kind, std::as_bytes(std::span(body)))) return;
  ring_outbox_.push_back({kind, std::move(body)});
}

bool ShmPeer::push_now(std::uint8_t kind, std::span<const std::byte> body) {
  if (!conduit->out.push(kind, body)) return false;
  if (conduit->out.must_wake()) ring_doorbell();
  return true;
}

void ShmPeer::flush_ring() {
  while (!ring_outbox_.empty()) {
    const RingMessage& next = ring_outbox_.front();
    if (!push_now(next.kind, std::as_bytes(std::span(next.body)))) return;
    ring_outbox_.pop_front();
  }
}

void ShmPeer::ring_doorbell() noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the other side is woken anyway.
  [[maybe_unused]] const auto written = ::write(doorbell.get(), &one, sizeof one);
}

}  // namespace tensorbus::fabric
