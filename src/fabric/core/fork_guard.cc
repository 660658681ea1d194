#include "fabric/core/fork_guard.h"

#include "os/process/fork.h"

namespace tensorbus::fabric {
namespace {

class Guarded final : public Fabric {
 public:
  explicit Guarded(std::unique_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}
  ~Guarded() override {
    // What is released here is lost to the child, and needed by the parent.
    if (!forked()) return;
    [[maybe_unused]] const Fabric* const lost = fabric_.release();
  }

  const Address& address() const noexcept override { return fabric_->address(); }
  Gate make_gate() override { return here().make_gate(); }
  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                 std::shared_ptr<const Lender> lender) override {
    return here().expose(tensors, std::move(gate), std::move(lender));
  }
  std::shared_ptr<Peer> connect(const Address& remote, const std::string& secret,
                                Deadline deadline) override {
    return here().connect(remote, secret, deadline);
  }
  void disconnect(Peer& peer) override { here().disconnect(peer); }
  void admit(const std::string& who, const std::optional<Address>& address) override {
    here().admit(who, address);
  }
  void send(Peer& peer, std::span<const std::byte> message) override { here().send(peer, message); }
  std::uint64_t open_inlet(Peer& peer, std::span<std::byte> memory, const Pool* pool) override {
    return here().open_inlet(peer, memory, pool);
  }
  void close_inlet(Peer& peer, std::uint64_t inlet) override { here().close_inlet(peer, inlet); }
  void write(Peer& peer, std::uint64_t inlet, std::uint64_t offset,
             std::span<const std::byte> bytes) override {
    here().write(peer, inlet, offset, bytes);
  }
  SharedInlet inlet(Peer& peer, std::uint64_t number) override {
    return here().inlet(peer, number);
  }
  void attach(Peer& peer, std::uint64_t region, OpId id, Deadline deadline) override {
    here().attach(peer, region, id, deadline);
  }
  void read(Read read, OpId id, Deadline deadline) override {
    here().read(std::move(read), id, deadline);
  }
  std::int64_t bytes_read(OpId id) const noexcept override { return fabric_->bytes_read(id); }
  Word make_word(Peer& peer, std::uint64_t initial) override {
    return here().make_word(peer, initial);
  }
  void swap(const Swap& swap, OpId id, Deadline deadline) override {
    here().swap(swap, id, deadline);
  }
  const std::atomic<std::uint64_t>* watch(Peer& peer, std::uint32_t word) override {
    return here().watch(peer, word);
  }
  void cancel(OpId id) noexcept override {
    if (!forked()) fabric_->cancel(id);
  }
  std::span<const Event> poll() override { return here().poll(); }
  bool arm() override { return here().arm(); }
  int fd() const noexcept override { return forked() ? -1 : fabric_->fd(); }
  TimePoint wake_at() const noexcept override {
    return forked() ? TimePoint::max() : fabric_->wake_at();
  }

 private:
  bool forked() const noexcept { return os::fork_generation() != generation_; }
  Fabric& here() {
    if (forked()) {
      throw Error(Code::failed,
                  "this fabric belongs to the process that forked; make a new one in the child");
    }
    return *fabric_;
  }

  std::unique_ptr<Fabric> fabric_;
  const unsigned generation_ = os::fork_generation();
};

}  // namespace

std::unique_ptr<Fabric> guard_against_fork(std::unique_ptr<Fabric> fabric) {
  return std::make_unique<Guarded>(std::move(fabric));
}

}  // namespace tensorbus::fabric
