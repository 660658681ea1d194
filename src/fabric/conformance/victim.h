// A fabric with a good peer and a bad one: whatever the bad peer does, the fabric's operations with
// it end and the good peer notices nothing.
#pragma once

#include <cstring>
#include <set>

#include "base/clock.h"
#include "fabric/conformance/dice.h"
#include "fabric/conformance/party.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {

class Victim {
 public:
  // Two fabrics that can reach each other; the victim's secret is "secret".
  Victim(std::unique_ptr<Fabric> victim, std::unique_ptr<Fabric> friendly)
      : party(std::move(victim)), friend_(std::move(friendly)) {
    memory_.fill(std::byte{5});
    const TensorView view{memory_.data(), Dtype::int8, shape_, strides_};
    region = party->expose(std::span(&view, 1));
    const auto peer = friend_->connect(party->address(), "secret", Deadline::never());
    until([&] { return peer->up() && !party.ups.empty(); });
    friend_->attach(*peer, region->number(), OpId{1}, Deadline::never());
    until([&] { return friend_.completion(OpId{1}) != nullptr; });
    from_victim_ = {peer, friend_.completion(OpId{1})->region, 0};
    party.ups.clear();
  }

  template <typename Condition>
  void until(Condition holds) {
    const Deadline patience = Deadline::after(std::chrono::seconds(20));
    while (!holds()) {
      if (patience.expired()) throw Error(Code::timeout, "nothing happens");
      poll();
    }
  }
  void poll() {
    party.poll();
    friend_.poll();
  }

  // One of the things that users do with a peer.
  void use(const std::shared_ptr<Peer>& peer, Dice& dice) {
    const auto start = [&](auto call) {
      const OpId id{++last_id_};
      try {
        call(id);
        running_.insert(id);
      } catch (const Error&) {
        // Refused at once: nothing was started.
      }
    };
    switch (dice.below(7)) {
      case 0:
      case 1:
        return start([&](OpId id) { party->attach(*peer, dice.number(), id, Deadline::never()); });
      case 2:
        return start([&](OpId id) { read(peer, id); });
      case 3:
        return start([&](OpId id) {
          party->swap({{peer, their_region_, 0}, 0, dice.number(), 1}, id, Deadline::never());
        });
      case 4:
        if (last_id_ > 1) party->cancel(OpId{last_id_ - dice.below(2)});
        return;
      default:
        try {
          party->send(*peer, std::as_bytes(std::span("hello", 5)));
          static_cast<void>(party->make_word(*peer, 7));
          party->open_inlet(*peer, {inlet_.get(), inlet_bytes}, &pool_);
          party->write(*peer, dice.number(), dice.number(), std::as_bytes(std::span("hello", 5)));
        } catch (const Error&) {
        }
    }
  }
  // Every operation ends once, with whatever result.
  void collect() {
    for (const Completion& done : party.completions) {
      if (running_.erase(done.id) != 1) throw Error(Code::failed, "a completion too many");
      if (done.region != nullptr) their_region_ = done.region;
      believed += done.status.ok() ? 1 : 0;
    }
    party.completions.clear();
  }

  // After the bad peer has gone.
  void expect_all_is_well() {
    until([&] {
      collect();
      return running_.empty();
    });
    std::array<std::byte, bytes> target{};
    const TensorView view{target.data(), Dtype::int8, shape_, strides_};
    const Dtype type = Dtype::int8;
    const OpId id{++last_read_};
    friend_->read(
        {std::make_shared<plan::Stream>(whole_stream(from_victim_.region->forms(), {&type, 1})),
         0,
         {from_victim_},
         {view}},
        id, Deadline::never());
    until([&] { return friend_.completion(id) != nullptr; });
    if (const Status status = friend_.completion(id)->status; !status.ok()) throw Error(status);
    if (target != memory_) throw Error(Code::failed, "the memory of the victim was changed");
    if (!friend_.losses.empty()) throw Error(friend_.losses.front().reason);
    friend_.completions.clear();
    party.ups.clear();
    party.losses.clear();
    party.messages.clear();
    their_region_.reset();
  }

  Party party;
  std::unique_ptr<Region> region;
  std::size_t believed = 0;  // operations on the bad peer that went well

 private:
  static constexpr std::size_t bytes = 100'000;
  static constexpr std::size_t inlet_bytes = 4096;

  // All of the region that the bad peer told us of, if we have room for it.
  void read(const std::shared_ptr<Peer>& peer, OpId id) {
    if (their_region_ == nullptr) throw Error(Code::invalid_argument, "nothing to read");
    std::vector<Dtype> types;
    std::vector<TensorView> views;
    dense_.clear();
    for (const TensorForm& form : their_region_->forms()) {
      dense_.push_back(plan::contiguous_strides(form.shape));
      types.push_back(form.dtype);
    }
    const auto stream = std::make_shared<plan::Stream>(whole_stream(their_region_->forms(), types));
    if (stream->wire_bytes > std::int64_t{1} << 20) {
      throw Error(Code::invalid_argument, "too large for this test");
    }
    // Targets may overlap; nobody looks at what is in them.
    scratch_.resize(std::size_t{1} << 20);
    for (std::size_t i = 0; i < types.size(); ++i) {
      views.push_back({scratch_.data(), types[i], their_region_->forms()[i].shape, dense_[i]});
    }
    held_ = their_region_;
    party->read({stream, 0, {{peer, their_region_, 0}}, views}, id, Deadline::never());
  }

  Pool pool_{PoolOptions{std::size_t{1} << 20}};
  std::shared_ptr<std::byte> inlet_ = pool_.allocate(inlet_bytes);
  std::array<std::byte, bytes> memory_{};
  const Shape shape_{bytes};
  const Shape strides_{1};
  Party friend_;
  Source from_victim_;
  std::uint64_t last_read_ = 1;
  std::uint64_t last_id_ = 0;
  std::set<OpId> running_;
  std::shared_ptr<const RemoteRegion> their_region_;
  std::shared_ptr<const RemoteRegion> held_;
  std::deque<Shape> dense_;
  std::vector<std::byte> scratch_;
};

}  // namespace tensorbus::fabric
