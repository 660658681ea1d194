// A fabric for the suite whose tensors are lent to it by this very process, all but those of a
// pool: what works without lenders must work with them.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

#include "fabric/core/fabric.h"
#include "fabric/core/pool.h"
#include "os/process/process.h"

namespace tensorbus::fabric {

class LendingFabric final : public Fabric {
 public:
  LendingFabric(std::unique_ptr<Fabric> fabric, std::shared_ptr<Pool> pool)
      : fabric_(std::move(fabric)), pool_(std::move(pool)) {}

  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                 std::shared_ptr<const Lender>) override {
    std::vector<TensorView> lent(tensors.begin(), tensors.end());
    return fabric_->expose(send_away(lent), std::move(gate), lender_);
  }
  void read(Read read, OpId id, Deadline deadline) override {
    send_away(read.targets);
    read.lender = lender_;
    fabric_->read(std::move(read), id, deadline);
  }
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

 private:
  const std::vector<TensorView>& send_away(std::vector<TensorView>& tensors) const {
    for (TensorView& tensor : tensors) {
      tensor.elsewhere = !tensor.empty() && !(pool_ != nullptr && pool_->find(tensor.data, 1));
    }
    return tensors;
  }

  std::unique_ptr<Fabric> fabric_;
  std::shared_ptr<Pool> pool_;
  std::shared_ptr<const Lender> lender_ =
      std::make_shared<Lender>(os::open_pidfd(::getpid()), own_probe());
};

}  // namespace tensorbus::fabric
