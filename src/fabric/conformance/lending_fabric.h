// A fabric for the suite whose tensors are lent to it by this very process, all but those of a
// pool: what works without lenders must work with them.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

#include "fabric/conformance/wrapped_fabric.h"
#include "fabric/core/pool.h"
#include "os/process/process.h"

namespace tensorbus::fabric {

class LendingFabric final : public WrappedFabric {
 public:
  LendingFabric(std::unique_ptr<Fabric> fabric, std::shared_ptr<Pool> pool)
      : WrappedFabric(std::move(fabric)), pool_(std::move(pool)) {}

  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                 std::shared_ptr<const Lender>) override {
    std::vector<TensorView> lent(tensors.begin(), tensors.end());
    return inner().expose(send_away(lent), std::move(gate), lender_);
  }
  void read(Read read, OpId id, Deadline deadline) override {
    send_away(read.targets);
    read.lender = lender_;
    inner().read(std::move(read), id, deadline);
  }

 private:
  const std::vector<TensorView>& send_away(std::vector<TensorView>& tensors) const {
    for (TensorView& tensor : tensors) {
      tensor.elsewhere = !tensor.empty() && !(pool_ != nullptr && pool_->find(tensor.data, 1));
    }
    return tensors;
  }

  std::shared_ptr<Pool> pool_;
  std::shared_ptr<const Lender> lender_ =
      std::make_shared<Lender>(os::open_pidfd(::getpid()), own_probe());
};

}  // namespace tensorbus::fabric
