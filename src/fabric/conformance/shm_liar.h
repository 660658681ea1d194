// A process that knows the secret and then says anything, through the socket and the shared memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/bytes.h"
#include "fabric/conformance/dice.h"
#include "fabric/conformance/victim.h"
#include "fabric/shm/conduit.h"
#include "fabric/shm/handshake.h"
#include "fabric/shm/peer.h"
#include "os/io/memory.h"
#include "os/io/poll.h"
#include "os/net/unix_socket.h"
#include "os/process/process.h"

namespace tensorbus::fabric {

class ShmLiar {
 public:
  // Up to the end of the handshake it does as it should, unless `dice` says otherwise.
  ShmLiar(Victim& victim, Dice& dice)
      : victim_(victim), socket_(os::connect_unix(victim.party->address().where)) {
    const Identity self{"here", ::getpid(), os::own_start_time(), random_id(), "liar"};
    id_ = self.id;
    const auto probe =
        dice.below(2) == 0 ? reinterpret_cast<std::uint64_t>(id_.data()) : dice.number();
    const std::string hello =
        encode(Hello{{self, probe, random_id()}, victim.party->address().identity});
    say(packet(PacketKind::hello, maybe_damaged(hello, dice)));
    const std::string challenge = hear(PacketKind::challenge);
    if (challenge.empty()) return;
    const os::Fd file = ShmConduit::make_file();
    memory_ = os::map(file, os::checked_memfd_size(file), true, true);
    conduit_ = std::make_unique<ShmConduit>(file, ShmConduit::Half::connector);
    const std::string proof = connector_proof("secret", hello, challenge);
    say(packet(PacketKind::proof, maybe_damaged(proof, dice)), {file.get()});
    if (hear(PacketKind::accept).empty()) return;
    say(packet(PacketKind::accept, ""), {doorbell_.get()});
    for (int i = 0; i < 50 && victim.party.ups.empty(); ++i) victim.poll();
    if (!victim.party.ups.empty()) peer_ = victim.party.ups.back();
    // Some do a lot right, so that more of us is reached before they are found out.
    subtle_ = dice.below(3) != 0;
    if (!subtle_) return;
    give_a_segment();
    say(packet(PacketKind::want_window, ""));
  }

  // Null if the liar was not let in.
  const std::shared_ptr<Peer>& as_peer() const noexcept { return peer_; }

  void lie(Dice& dice) {
    listen();
    switch (dice.below(subtle_ ? 6 : 10)) {
      case 0:
      case 1:
        return answer_attach(dice);
      case 2:
        return answer_ask(dice);
      case 3: {
        const Ask ask{dice.number(),
                      1 + dice.below(2),
                      dice.below(2),
                      dice.number(),
                      static_cast<std::uint32_t>(dice.number()),
                      static_cast<std::uint8_t>(dice.below(subtle_ ? 2 : 4))};
        return push(ask_message, subtle_ ? encode(ask) : dice.damaged(encode(ask)));
      }
      case 4:
        return say(packet(dice.below(2) == 0 ? PacketKind::window : PacketKind::want_window, ""),
                   {sealed(window_slots * slot_bytes)});
      case 5:
        return give_an_inlet(dice);
      case 6:
        return say(packet(static_cast<PacketKind>(dice.below(16)), dice.text(60)), some_fds(dice));
      case 7: {
        Encoder segment;
        segment.integer(std::uint64_t{1 + dice.below(3)});
        return say(packet(PacketKind::segment, segment.bytes()), some_fds(dice));
      }
      case 8:
        return scribble(dice);
      default:
        return push(static_cast<std::uint8_t>(dice.below(5)), dice.text(100));
    }
  }

  // Says that memory is to come before the next message, and sends the message alone.
  void promise_an_inlet() {
    push(inlet_message, std::move(Encoder().integer(std::uint64_t{1})).bytes());
    push(user_message, "behind it");
  }

 private:
  static std::string maybe_damaged(std::string bytes, Dice& dice) {
    return dice.below(4) == 0 ? dice.damaged(std::move(bytes)) : bytes;
  }

  void say(const std::string& bytes, const std::vector<int>& fds = {}) {
    if (!bytes.empty()) os::send_packet(socket_, bytes, fds);
  }

  // The body of the packet, or nothing if another one came.
  std::string hear(PacketKind kind) {
    os::Packet received;
    for (int i = 0; i < 50; ++i) {
      victim_.poll();
      const os::PacketResult result = os::receive_packet(socket_, received);
      if (result == os::PacketResult::closed) return {};
      if (result == os::PacketResult::would_block) continue;
      if (received.bytes.front() != static_cast<char>(kind)) return {};
      return received.bytes.substr(1);
    }
    return {};
  }

  // Takes what the liar is asked for, to be answered wrongly.
  void listen() {
    os::Packet received;
    while (os::receive_packet(socket_, received) == os::PacketResult::done) {
      if (received.bytes.front() != static_cast<char>(PacketKind::attach)) continue;
      attaches_.push_back(Decoder(received.bytes.substr(1)).integer<std::uint64_t>());
    }
    try {
      RingMessage message;
      while (conduit_ != nullptr && conduit_->in.pop(message)) {
        if (message.kind == ask_message) asks_.push_back(decode_ask(message.body).request);
      }
    } catch (const Error&) {
      // The liar scribbled over its own ring.
    }
  }
  static std::uint64_t one_of(std::vector<std::uint64_t>& requests, Dice& dice) {
    if (requests.empty()) return dice.number();
    const std::uint64_t request = requests.back();
    requests.pop_back();
    return request;
  }

  void answer_attach(Dice& dice) {
    if (subtle_ && attaches_.empty()) return;
    Encoder body;
    const std::string table = some_table(dice);
    body.integer(one_of(attaches_, dice)).integer(std::uint8_t{subtle_ || dice.below(2) == 0});
    body.raw(subtle_ ? table : dice.damaged(table));
    say(packet(PacketKind::table, body.bytes()));
  }
  void answer_ask(Dice& dice) {
    if (subtle_ && asks_.empty()) return;
    Encoder body;
    body.integer(one_of(asks_, dice)).integer(static_cast<std::uint8_t>(dice.below(3)));
    body.string("").integer(dice.number());
    push(packed_message, body.bytes());
  }

  void give_an_inlet(Dice& dice) {
    Encoder body;
    body.integer(subtle_ ? ++inlets_ : dice.number()).integer(dice.number()).integer(dice.number());
    push(inlet_message, body.bytes().substr(0, 8));
    say(packet(PacketKind::inlet, body.bytes()), {sealed(4096)});
    if (dice.below(4) != 0) return;
    say(packet(PacketKind::inlet_closed, body.bytes().substr(0, 8)));
  }

  // Segment 1, as an owner's pool would have it.
  void give_a_segment() {
    segment_ = os::map(os::Fd(::dup(sealed(segment_bytes))), segment_bytes, true, true);
    Encoder number;
    number.integer(std::uint64_t{1});
    say(packet(PacketKind::segment, number.bytes()), {files_.back().get()});
  }
  int sealed(std::size_t size) {
    files_.push_back(os::sealed_memfd("liar", size));
    return files_.back().get();
  }
  // Memory as it should be, memory of kinds that are not allowed, and other things.
  std::vector<int> some_fds(Dice& dice) {
    switch (dice.below(6)) {
      case 0:
        return {};
      case 1:
        return {doorbell_.get(), doorbell_.get()};
      case 2:
        return {socket_.get()};
      case 3:
        files_.emplace_back(::memfd_create("not sealed", MFD_CLOEXEC));
        return {files_.back().get()};
      case 4:
        return {sealed(window_slots * slot_bytes)};
      default:
        return {sealed(4096 * (1 + dice.below(3)))};
    }
  }

  // Of a region with a tensor or two, in segments that may have been sent or in private memory.
  std::string some_table(Dice& dice) {
    const std::uint64_t number = dice.number();
    if (segment_) std::memcpy(segment_.data(), &number, sizeof number);
    Forms forms;
    for (std::size_t n = dice.below(3); n > 0; --n) {
      const auto length = static_cast<std::int64_t>(dice.number() % 5000);
      forms.push_back({all_dtypes()[dice.below(all_dtypes().size())],
                       {length},
                       {static_cast<std::int64_t>(dice.number() % 8) - 2}});
    }
    Encoder encoder;
    encoder.integer(number).string(encode(forms));
    const auto place = [&](std::uint64_t segment, std::uint64_t offset) {
      encoder.integer(segment).integer(offset);
    };
    place(1, subtle_ ? 0 : dice.number());
    place(1, subtle_ ? 8 : dice.number());
    encoder.integer(subtle_ ? 0 : dice.number()).raw(std::string(sizeof(Probe::value), '\0'));
    for (std::size_t i = 0; i < forms.size(); ++i) {
      encoder.integer(dice.below(2) == 0 ? reinterpret_cast<std::uint64_t>(this) : dice.number());
      place(dice.below(2), dice.number() * 128);
    }
    return std::move(encoder).bytes();
  }

  // Anywhere in the memory of the connection; often where it hurts.
  void scribble(Dice& dice) {
    if (!memory_) return;
    const std::size_t side = dice.below(2) * ring_bytes(ring_capacity);
    const std::size_t at = dice.below(2) == 0 ? side + dice.below(sizeof(RingHeader))
                                              : (dice.number() << 8 | dice.byte()) % memory_.size();
    const std::uint64_t value = dice.number();
    std::memcpy(memory_.data() + at, &value, std::min(sizeof value, memory_.size() - at));
  }

  void push(std::uint8_t kind, const std::string& body) {
    if (conduit_ == nullptr) return;
    try {
      conduit_->out.push(kind, std::as_bytes(std::span(body)));
    } catch (const Error&) {
      // The liar scribbled over its own ring.
    }
  }

  static constexpr std::size_t segment_bytes = 8192;

  Victim& victim_;
  bool subtle_ = false;
  std::uint64_t inlets_ = 0;
  os::Fd socket_;
  os::EventFd doorbell_;
  Id16 id_{};
  os::Mapping memory_;   // of the connection
  os::Mapping segment_;  // what it pretends to share
  std::unique_ptr<ShmConduit> conduit_;
  std::vector<os::Fd> files_;
  std::vector<std::uint64_t> attaches_;  // what it was asked
  std::vector<std::uint64_t> asks_;
  std::shared_ptr<Peer> peer_;
};

// One bad peer, from its first packet to its end.
inline void lie_through_shm(Victim& victim, std::string_view bytes) {
  Dice dice(bytes);
  {
    ShmLiar liar(victim, dice);
    while (!dice.used_up()) {
      if (liar.as_peer() != nullptr && dice.below(3) == 0) victim.use(liar.as_peer(), dice);
      liar.lie(dice);
      victim.poll();
      victim.collect();
    }
  }
  victim.expect_all_is_well();
}

}  // namespace tensorbus::fabric
