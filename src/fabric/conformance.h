// Two processes' worth of a fabric in one thread, for the suite that every fabric runs.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"

namespace tensorbus::fabric {

// One way to make fabrics that can reach each other.
struct Kind {
  std::string name;
  // Called once per test; the result makes one fabric per call and keeps what they share.
  std::function<std::function<std::unique_ptr<Fabric>(std::string name, std::string secret)>()>
      network;
  // Memory for exposed tensors: the fabric's own, or anybody's.
  std::function<std::shared_ptr<std::byte>(std::size_t bytes)> allocate;
};

inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// Every kind there is on this machine.
std::vector<Kind> available_kinds();

// A tensor with its memory; copies share both, so that views outlive them.
struct TestTensor {
  std::shared_ptr<std::byte> memory;
  std::shared_ptr<const TensorForm> form;
  std::ptrdiff_t first = 0;  // where the first element lies

  TensorView view() const {
    return {memory.get() + first, form->dtype, form->shape, form->strides};
  }
};

// A fabric with its events sorted by what tests ask for.
class Party {
 public:
  explicit Party(std::unique_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}

  Fabric& operator*() { return *fabric_; }
  Fabric* operator->() { return fabric_.get(); }
  void kill() { fabric_.reset(); }

  void poll() {
    if (fabric_ == nullptr) return;
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
  std::unique_ptr<Fabric> fabric_;
};

}  // namespace tensorbus::fabric
