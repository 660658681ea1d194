// Programs over memory that this process cannot see: what lies in a lender's memory passes through
// scratch, chunk by chunk.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "copy/execute.h"
#include "fabric/core/lender.h"
#include "fabric/read/fragments.h"
#include "plan/bound_side.h"
#include "tensor/view.h"
#include "tensorbus/plan.h"

namespace tensorbus::fabric {

// Where tensors lie, by position in the batch.
struct TensorMemory {
  std::vector<std::byte*> first;
  std::vector<bool> elsewhere;  // in the memory of the lender
  std::shared_ptr<const Lender> lender;
};
// Error(invalid_argument) for a tensor that is elsewhere without a lender.
TensorMemory memory_of(std::span<const TensorView> tensors, std::shared_ptr<const Lender> lender);

// Copies memory of another process into ours; the sums of both lengths are equal.
using Fetch = std::function<void(std::span<const iovec> local, std::span<const iovec> remote)>;

// Rewrites one bound side of a program so that kernels run on `tensors()`: the memory itself, or
// scratch that fetch() fills before and store() empties after the chunk.
class Staging {
 public:
  Staging(plan::Program& program, plan::BoundSide side, TensorMemory memory);
  Staging(Staging&&) = default;
  Staging& operator=(Staging&&) = default;

  std::span<std::byte* const> tensors() const noexcept { return tensors_; }
  copy::Sources sources() const noexcept {
    return {const_cast<const std::byte* const*>(tensors_.data()), tensors_.size()};
  }
  // Nothing is elsewhere: both calls do nothing.
  bool idle() const noexcept { return runs_.empty(); }
  // Throws what the Lender throws, or what is given instead of a lender.
  void fetch(std::size_t chunk);
  void fetch(std::size_t chunk, const Fetch& fetch);
  void store(std::size_t chunk);

 private:
  struct Staged {
    std::byte* remote = nullptr;  // first byte, in the lender
    std::size_t scratch = 0;      // where it lies in scratch
    // Blocks of so many bytes side by side, `rows` times and that `planes` times.
    std::size_t bytes = 0;
    std::int64_t rows = 1;
    std::int64_t planes = 1;
    std::int64_t row = 0;
    std::int64_t plane = 0;

    std::size_t total() const noexcept {
      return bytes * static_cast<std::size_t>(rows) * static_cast<std::size_t>(planes);
    }
  };

  void stage(plan::Run& run, plan::BoundSide side, std::size_t item, Staged& staged) const;
  // What the chunk needs, at both ends.
  void list(std::size_t chunk);

  TensorMemory memory_;
  std::vector<std::byte*> tensors_;
  std::vector<Staged> runs_;                 // those elsewhere
  std::vector<std::size_t> first_of_chunk_;  // in runs_, and its end
  std::vector<std::byte> scratch_;
  std::vector<iovec> local_;
  std::vector<iovec> remote_;
};

// The targets of a read: the program that many reads share, or where targets are elsewhere a copy
// of that program that passes through scratch. The shared program is borrowed.
class TargetSide {
 public:
  TargetSide(const plan::Program& shared, const TensorMemory& memory);

  const plan::Program& program() const noexcept { return own_ ? own_->program : *shared_; }
  std::span<std::byte* const> tensors() const noexcept {
    return own_ ? own_->staging.tensors() : std::span<std::byte* const>(tensors_);
  }
  bool staged() const noexcept { return own_ != nullptr; }
  // After the chunk was written. Error as Lender's.
  void store(std::size_t chunk) {
    if (own_) own_->staging.store(chunk);
  }

 private:
  struct Own {
    Own(const plan::Program& shared, const TensorMemory& memory)
        : program(shared), staging(program, plan::BoundSide::target, memory) {}
    plan::Program program;
    Staging staging;
  };

  const plan::Program* shared_;
  std::vector<std::byte*> tensors_;
  std::unique_ptr<Own> own_;
};

// A stream bound to its owner's tensors, for readers who ask for the stream packed.
class Packer {
 public:
  Packer(plan::Program program, TensorMemory memory);

  const plan::Program& program() const noexcept { return program_; }
  void gather(std::size_t chunk, std::span<std::byte> wire);
  void gather(std::size_t chunk, std::span<std::byte> wire, copy::Crew& crew);
  // Tensors that are elsewhere are fetched by this function, and not from a lender.
  void gather(std::size_t chunk, std::span<std::byte> wire, const Fetch& fetch, copy::Crew& crew);

 private:
  void pack(std::size_t chunk, std::span<std::byte> wire);
  void pack(std::size_t chunk, std::span<std::byte> wire, copy::Crew& crew);

  plan::Program program_;
  Staging staging_;
  std::optional<ChunkPieces> pieces_;  // once several threads have packed
};

}  // namespace tensorbus::fabric
