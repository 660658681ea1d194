// A fabric as tests hold it: with its events sorted by what they ask for.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "fabric/core/fabric.h"

namespace tensorbus::fabric {

class Party {
 public:
  // `visit` runs before every call: several hosts in one thread are several network namespaces.
  explicit Party(
      std::unique_ptr<Fabric> fabric, std::function<void()> visit = [] {})
      : visit_(std::move(visit)), fabric_(std::move(fabric)) {}
  Party(Party&&) = default;
  ~Party() {
    if (fabric_ != nullptr) kill();
  }

  Fabric& operator*() {
    visit_();
    return *fabric_;
  }
  Fabric* operator->() {
    visit_();
    return fabric_.get();
  }
  void kill() {
    visit_();
    fabric_.reset();
  }
  std::unique_ptr<Fabric> release() { return std::move(fabric_); }

  void poll() {
    if (fabric_ == nullptr) return;
    visit_();
    for (const Event& event : fabric_->poll()) {
      if (const auto* done = std::get_if<Completion>(&event)) completions.push_back(*done);
      if (const auto* message = std::get_if<Message>(&event)) messages.push_back(*message);
      if (const auto* up = std::get_if<PeerUp>(&event)) ups.push_back(up->peer);
      if (const auto* lost = std::get_if<PeerLost>(&event)) losses.push_back(*lost);
    }
  }

  const Completion* completion(OpId id) const {
    for (const Completion& done : completions) {
      if (done.id == id) return &done;
    }
    return nullptr;
  }

  std::deque<Completion> completions;
  std::deque<Message> messages;
  std::deque<std::shared_ptr<Peer>> ups;
  std::deque<PeerLost> losses;

 private:
  std::function<void()> visit_;
  std::unique_ptr<Fabric> fabric_;
};

}  // namespace tensorbus::fabric
