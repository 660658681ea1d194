// Programs over memory that this process cannot see: what lies in a lender's memory, or in a
// device's, passes through scratch, chunk by chunk.
//
// A lender's memory is copied by the call that asks for it. A device copies when it comes to it: a
// copy is begun, and the chunk is ready when the copy has ended. Whoever can have tensors on
// devices asks; for all others every chunk is ready.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "copy/execute.h"
#include "device/core/copier.h"
#include "device/core/open_copies.h"
#include "fabric/core/lender.h"
#include "fabric/read/fragments.h"
#include "plan/bound_side.h"
#include "tensor/view.h"
#include "tensorbus/plan.h"

namespace tensorbus::fabric {

// Where tensors lie, by position in the batch.
struct TensorMemory {
  std::vector<std::byte*> first;
  std::vector<bool> elsewhere;  // in the memory of the lender, or of a device
  std::shared_ptr<const Lender> lender;
  std::vector<device::Copier*> copiers;  // of tensors on a device; empty: there are none

  bool on_device() const noexcept { return !copiers.empty(); }
};
// Error(invalid_argument) for a tensor that is elsewhere without a lender, Error(unsupported) for
// one on a device that cannot be used, or without copiers, which are borrowed.
TensorMemory memory_of(std::span<const TensorView> tensors, std::shared_ptr<const Lender> lender,
                       device::Copiers* copiers = nullptr);

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
  // Nothing is elsewhere: the calls below do nothing.
  bool idle() const noexcept { return runs_.empty(); }
  // Throws what the Lender throws, or what is given instead of a lender. Of memory of a device both
  // only begin: the chunk was ready before.
  void fetch(std::size_t chunk);
  void fetch(std::size_t chunk, const Fetch& fetch);
  void store(std::size_t chunk);

  // Of chunks that follow each other so many have scratch of their own.
  std::size_t slots() const noexcept { return slots_; }
  // Whether no device is at the chunk's scratch: what was begun for the chunk, or for an earlier
  // one with the same scratch, is over. Throws the Error of a copy that failed.
  bool ready(std::size_t chunk) { return copies_.empty() || copies_[chunk % slots_].over(); }
  bool wait_until_ready(std::size_t chunk, Deadline deadline) {
    return copies_.empty() || copies_[chunk % slots_].wait(deadline);
  }
  // Whether no device is at any of the memory. Throws the Error of a copy that failed.
  bool finished();
  // The same for who does not care how the copies ended.
  bool ended() noexcept;
  // Sleeps until they have.
  void settle() noexcept {
    for (device::OpenCopies& each : copies_) each.settle();
  }

 private:
  struct Staged {
    std::byte* remote = nullptr;       // first byte, in the lender or on the device
    device::Copier* copier = nullptr;  // of the device
    std::size_t scratch = 0;           // where it lies in scratch
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
  void take_scratch(std::size_t bytes_of_slot);
  // Gives the chunks of a program that was staged in one slot theirs.
  void spread(plan::Program& program, plan::BoundSide side, std::size_t bytes_of_slot);
  // What the chunk needs of the lender, at both ends.
  void list(std::size_t chunk);
  enum class Way { fetch, store };
  void begin_copies(std::size_t chunk, Way way);
  device::Block block_of(const Staged& staged, Way way) const;

  TensorMemory memory_;
  std::vector<std::byte*> tensors_;
  std::vector<Staged> runs_;                 // those elsewhere
  std::vector<std::size_t> first_of_chunk_;  // in runs_, and its end
  std::vector<std::byte> own_scratch_;
  std::shared_ptr<std::byte> pinned_scratch_;  // if a tensor is on a device
  std::byte* scratch_ = nullptr;               // whichever it is
  std::size_t slots_ = 1;
  std::vector<device::OpenCopies> copies_;  // by slot; empty if no tensor is on a device
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
  // Whether the chunk may be written now, and the two others, as of Staging.
  bool ready(std::size_t chunk) { return !own_ || own_->staging.ready(chunk); }
  bool finished() { return !own_ || own_->staging.finished(); }
  bool ended() noexcept { return !own_ || own_->staging.ended(); }
  void settle() noexcept {
    if (own_) own_->staging.settle();
  }
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
  // Of tensors on a device a chunk is begun, and packed when it is ready; of chunks that follow
  // each other so many can be begun. gather() is for others.
  bool on_device() const noexcept { return on_device_; }
  std::size_t slots() const noexcept { return staging_.slots(); }
  void begin(std::size_t chunk) { staging_.fetch(chunk); }
  bool ready(std::size_t chunk) { return staging_.ready(chunk); }
  void settle() noexcept { staging_.settle(); }
  void gather(std::size_t chunk, std::span<std::byte> wire);
  void gather(std::size_t chunk, std::span<std::byte> wire, copy::Crew& crew);
  // Tensors that are elsewhere are fetched by this function, and not from a lender.
  void gather(std::size_t chunk, std::span<std::byte> wire, const Fetch& fetch, copy::Crew& crew);
  // What was fetched.
  void pack(std::size_t chunk, std::span<std::byte> wire);
  void pack(std::size_t chunk, std::span<std::byte> wire, copy::Crew& crew);

 private:
  plan::Program program_;
  bool on_device_;
  Staging staging_;
  std::optional<ChunkPieces> pieces_;  // once several threads have packed
};

}  // namespace tensorbus::fabric
