// A fabric for the suite that does with its tensors something else than the fabric in it; all other
// calls are passed on.
#pragma once

#include <memory>
#include <utility>

#include "fabric/core/fabric.h"

namespace tensorbus::fabric {

class WrappedFabric : public Fabric {
 public:
  explicit WrappedFabric(std::unique_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}

  std::int64_t bytes_read(OpId id) const noexcept override { return fabric_->bytes_read(id); }

  const Address& address() const noexcept override { return fabric_->address(); }
  Gate make_gate() override { return fabric_->make_gate(); }
  std::shared_ptr<Peer> connect(const Address& remote, const std::string& secret,
                                Deadline deadline) override {
    return fabric_->connect(remote, secret, deadline);
  }
  void disconnect(Peer& peer) override { fabric_->disconnect(peer); }
  void send(Peer& peer, std::span<const std::byte> message) override {
    fabric_->send(peer, message);
  }
  void hand_to(Receiver& receiver) override { fabric_->hand_to(receiver); }
  std::uint64_t open_inlet(Peer& peer, std::span<std::byte> memory, const Pool* pool) override {
    return fabric_->open_inlet(peer, memory, pool);
  }
  void close_inlet(Peer& peer, std::uint64_t inlet) override { fabric_->close_inlet(peer, inlet); }
  void write(Peer& peer, std::uint64_t inlet, std::uint64_t offset,
             std::span<const std::byte> bytes) override {
    fabric_->write(peer, inlet, offset, bytes);
  }
  SharedInlet inlet(Peer& peer, std::uint64_t number) override {
    return fabric_->inlet(peer, number);
  }
  void attach(Peer& peer, std::uint64_t region, OpId id, Deadline deadline) override {
    fabric_->attach(peer, region, id, deadline);
  }
  Word make_word(Peer& peer, std::uint64_t initial) override {
    return fabric_->make_word(peer, initial);
  }
  void swap(const Swap& swap, OpId id, Deadline deadline) override {
    fabric_->swap(swap, id, deadline);
  }
  const std::atomic<std::uint64_t>* watch(Peer& peer, std::uint32_t word) override {
    return fabric_->watch(peer, word);
  }
  void cancel(OpId id) noexcept override { fabric_->cancel(id); }
  std::span<const Event> poll() override { return fabric_->poll(); }
  bool arm() override { return fabric_->arm(); }
  int fd() const noexcept override { return fabric_->fd(); }
  TimePoint wake_at() const noexcept override { return fabric_->wake_at(); }

 protected:
  Fabric& inner() noexcept { return *fabric_; }

 private:
  std::unique_ptr<Fabric> fabric_;
};

}  // namespace tensorbus::fabric
