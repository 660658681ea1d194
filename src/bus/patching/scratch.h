// Memory of a reader's agent for all of a version, until the reader wants it in its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "bus/channel/loan.h"
#include "tensorbus/plan.h"

namespace tensorbus::bus {

class Scratch final : public Loan {
 public:
  // Bytes for one step of an agent.
  static constexpr std::int64_t at_once = std::int64_t{8} << 20;

  // In the form of these tensors, but dense. std::bad_alloc if there is not so much memory.
  explicit Scratch(std::span<const TensorView> like);

  const std::vector<TensorView>& tensors() const noexcept override { return views_; }
  std::shared_ptr<const fabric::Lender> lender() const noexcept override { return nullptr; }
  // Nobody takes it back.
  fabric::Gate gate() const override { return gate_; }

  // Copies a little to tensors like those; true: all of it is there.
  bool copy_to(std::span<const TensorView> targets);

 private:
  struct Free {
    void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
  };

  const fabric::Forms forms_;
  std::size_t total_ = 0;  // bytes
  std::unique_ptr<std::byte, Free> bytes_;
  std::vector<TensorView> views_;
  fabric::Gate gate_;
  plan::Program program_;  // of the copy, once it has begun
  std::size_t next_ = 0;   // of its chunks
  bool begun_ = false;
};

}  // namespace tensorbus::bus
