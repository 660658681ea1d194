// A process on the network that knows the secret and then says anything.
#pragma once

#include <cstring>

#include "base/bytes.h"
#include "fabric/conformance/dice.h"
#include "fabric/conformance/victim.h"
#include "fabric/ucx/endpoint.h"

namespace tensorbus::fabric::ucx {

// The UCX of a station stays when connections end: starting UCX takes milliseconds.
class LiarStation final : public Receiver {
 public:
  LiarStation() : worker({"127.0.0.1", {}}, *this) {}

  struct HeardFrame {
    Frame frame;
    std::string body;
  };
  std::vector<HeardFrame> take() { return std::exchange(heard_, {}); }

  Outbox outbox;  // outlives the worker
  Worker worker;

 private:
  void received(std::span<const std::byte> header,
                std::span<const std::byte> payload) noexcept override {
    heard_.push_back({decode_frame(header),
                      std::string(reinterpret_cast<const char*>(payload.data()), payload.size())});
  }
  std::vector<HeardFrame> heard_;
};

class Liar {
 public:
  // Up to the end of the greeting it does as it should, unless `dice` says otherwise.
  Liar(LiarStation& station, Victim& victim, Dice& dice)
      : station_(station),
        victim_(victim),
        endpoint_(station.worker, station.outbox, victim.party->address().where) {
    const Hello hello{dice.number() + 1,
                      random_id(),
                      {"here", 4711, 1, random_id(), "liar"},
                      victim.party->address().identity.id,
                      station.worker.address()};
    say(Kind::hello, 0, 0, maybe_damaged(encode(hello), dice));
    const std::string welcome_bytes = hear(Kind::welcome);
    if (welcome_bytes.empty()) return;
    const Welcome welcome = decode_welcome(welcome_bytes);
    stream_ = welcome.stream;
    const std::string proof = prove("secret", Role::caller, hello, welcome);
    say(Kind::proof, 0, 0, maybe_damaged(proof, dice));
    for (int i = 0; i < 50 && victim.party.ups.empty(); ++i) progress();
    if (!victim.party.ups.empty()) peer_ = victim.party.ups.back();
    // Some do a lot right, so that more of us is reached before they are found out.
    subtle_ = dice.below(3) != 0;
  }

  // Null if the liar was not let in.
  const std::shared_ptr<Peer>& as_peer() const noexcept { return peer_; }

  void lie(Dice& dice) {
    listen();
    switch (dice.below(subtle_ ? 6 : 9)) {
      case 0:
        return answer(attach_, Kind::forms, dice.below(8) == 0 ? 1 : 0, some_forms(dice), dice);
      case 1:
        return answer(ask_, Kind::fragment, fragment_++, dice.text(64), dice);
      case 2:
        return answer(ask_, Kind::served, 0, encode(some_status(dice)), dice);
      case 3:
        return answer(swap_, Kind::swapped, dice.number(), encode(some_status(dice)), dice);
      case 4:
        ask_number_ += subtle_ || dice.below(2) == 0 ? 1 : 0;
        return say(Kind::ask, ask_number_, 0,
                   encode(Ask{dice.below(3), dice.below(2), dice.number(), 100'000, 1 << 20,
                              dice.number() << 12}));
      case 5:
        if (dice.below(3) == 0) {
          return say(Kind::write, dice.number(), dice.number(), dice.text(64));
        }
        return say(dice.below(2) == 0 ? Kind::credit : Kind::cancel_read, dice.number(),
                   dice.number());
      case 6:
        return say(Kind::swap, dice.number(), 0,
                   dice.damaged(encode(SwapRequest{1, 0, static_cast<std::uint32_t>(dice.number()),
                                                   dice.number(), dice.number()})));
      case 7:
        sequence_ += dice.below(3);
        return;
      default:
        return say(static_cast<Kind>(dice.below(last_kind + 2)), dice.number(), dice.number(),
                   dice.text(100));
    }
  }

  // Both sides, until what was said has been heard.
  void progress() {
    for (int i = 0; i < 3; ++i) {
      station_.worker.progress();
      victim_.poll();
    }
  }

 private:
  static std::string maybe_damaged(std::string bytes, Dice& dice) {
    return dice.below(6) == 0 ? dice.damaged(std::move(bytes)) : bytes;
  }

  void say(Kind kind, std::uint64_t number, std::uint64_t index, std::string_view body = {}) {
    auto message = station_.outbox.take();
    message->frame = encode(Frame{kind, stream_, ++sequence_, number, index});
    message->bytes = body.copy(reinterpret_cast<char*>(message->body.get()), max_body_bytes);
    endpoint_.send(std::move(message));
  }

  std::string hear(Kind kind) {
    for (int i = 0; i < 2000; ++i) {
      progress();
      for (const LiarStation::HeardFrame& heard : station_.take()) {
        // Connections of before may still have something to say.
        if (heard.frame.kind == kind) return heard.body;
        if (heard.frame.kind == Kind::refused) return {};
      }
    }
    return {};
  }

  void listen() {
    progress();
    for (const LiarStation::HeardFrame& heard : station_.take()) {
      if (heard.frame.kind == Kind::attach) attach_ = heard.frame.number;
      if (heard.frame.kind == Kind::swap) swap_ = heard.frame.number;
      if (heard.frame.kind != Kind::ask) continue;
      ask_ = heard.frame.number;
      fragment_ = 0;
    }
  }

  // Of a request, if there was one; subtle ones answer nothing else.
  void answer(std::uint64_t& request, Kind kind, std::uint64_t index, const std::string& body,
              Dice& dice) {
    if (request == 0 && subtle_) return;
    const bool known = request != 0 && (subtle_ || dice.below(2) == 0);
    say(kind, known ? request : dice.number(), index, subtle_ ? body : dice.damaged(body));
    if (kind != Kind::fragment) request = 0;
  }

  static std::string some_forms(Dice& dice) {
    Forms forms;
    for (std::size_t n = dice.below(3); n > 0; --n) {
      forms.push_back({all_dtypes()[dice.below(all_dtypes().size())],
                       {static_cast<std::int64_t>(dice.number() % 100)},
                       {1}});
    }
    return fabric::encode(forms);
  }
  static Status some_status(Dice& dice) { return {static_cast<Code>(dice.below(3)), "whatever"}; }

  LiarStation& station_;
  Victim& victim_;
  bool subtle_ = false;
  Endpoint endpoint_;
  std::uint64_t stream_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t ask_number_ = 0;
  std::uint64_t fragment_ = 0;
  // What the liar was asked.
  std::uint64_t attach_ = 0;
  std::uint64_t ask_ = 0;
  std::uint64_t swap_ = 0;
  std::shared_ptr<Peer> peer_;
};

// One bad peer, from its first message to its end.
inline void lie_through_ucx(LiarStation& station, Victim& victim, std::string_view bytes) {
  Dice dice(bytes);
  std::shared_ptr<Peer> peer;
  {
    Liar liar(station, victim, dice);
    peer = liar.as_peer();
    while (!dice.used_up()) {
      if (peer != nullptr && dice.below(3) == 0) victim.use(peer, dice);
      liar.lie(dice);
      liar.progress();
      victim.collect();
    }
  }
  // The liar hangs up in the middle of whatever it did; nobody is told.
  if (peer != nullptr && peer->up()) victim.party->disconnect(*peer);
  victim.expect_all_is_well();
}

}  // namespace tensorbus::fabric::ucx
