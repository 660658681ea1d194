// A read that is being carried out, apart from how its bytes arrive.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "copy/execute.h"
#include "fabric/core/reads.h"
#include "fabric/read/device_blocks.h"
#include "fabric/read/staging.h"
#include "fabric/read/stream_cache.h"

namespace tensorbus::fabric {

// Error(invalid_argument) unless sources, stream and targets fit each other.
void check(const Read& read);

// A stream bound to the forms of the tensors on both sides, compiled as far as it is needed.
class Bound {
 public:
  // Checks the read.
  explicit Bound(const Read& read);
  bool fits(const Read& read) const { return forms_.fits(read); }

  // Valid while the stream of the read is.
  const plan::Stream& stream() const { return *stream_.lock(); }
  // The members' tensors have the same strides everywhere; then there is a direct program.
  bool alike() const noexcept { return alike_; }
  const plan::Program& direct();  // both sides bound
  const plan::Program& target();
  const plan::Program& source(std::size_t member);

 private:
  const ReadForms forms_;
  const std::weak_ptr<const plan::Stream> stream_;
  bool alike_ = true;
  std::optional<plan::Program> direct_;
  std::optional<plan::Program> target_;
  std::vector<std::optional<plan::Program>> sources_;
};

class Reading {
 public:
  // Checks the read.
  explicit Reading(Read read);
  // With what was bound for this read, or for one like it. `copiers`: of targets that are on
  // devices.
  Reading(Read read, std::shared_ptr<Bound> bound, device::Copiers* copiers = nullptr);

  const Read& read() const noexcept { return read_; }
  Bound& bound() noexcept { return *bound_; }
  const plan::Stream& stream() const noexcept { return bound_->stream(); }
  std::size_t chunk_count() const noexcept { return chunk_count_; }
  // Bytes of the stream that come before a chunk.
  std::int64_t bytes_before(std::size_t chunk) const noexcept;

  // Targets on a device are written when the device comes to it: a chunk is copied or scattered
  // when it is ready(), the targets are whole when all is finished(), and nobody is at them when
  // all has ended(). The first two throw the Error of a write that failed. Without such targets all
  // three are true.
  bool ready(std::size_t chunk) {
    return !memory_.on_device() || all_of([&](TargetSide& each) { return each.ready(chunk); });
  }
  bool finished() {
    return !memory_.on_device() || all_of([](TargetSide& each) { return each.finished(); });
  }
  bool ended() noexcept {
    return !memory_.on_device() || all_of([](TargetSide& each) { return each.ended(); });
  }

  // How a device itself brings packed chunks to the targets; null if it cannot.
  std::unique_ptr<const DeviceBlocks> device_blocks();

  // Straight from memory that this process sees: one pass. A member is the first elements of its
  // tensors, by position in the batch.
  void copy(std::size_t chunk, std::span<const copy::Sources> members);
  // From memory of the only member that is elsewhere; `fetch` brings that memory: stage() comes
  // first.
  void stage(TensorMemory source);
  void copy_staged(std::size_t chunk, const Fetch& fetch);
  // From what every member packed, in the order of the sources.
  using Wires = std::span<const std::span<const std::byte>>;
  void scatter(std::size_t chunk, Wires wires);
  void scatter(std::size_t chunk, Wires wires, copy::Crew& crew);

  // Whether copy() and direct() touch nothing but the memory of the read: then several threads may
  // be at different chunks. Binds both sides, which the first thread would do otherwise.
  bool is_direct() { return bound_->alike() && !direct().staged(); }

  // Where a program that binds both sides writes. What others than copy() write to these targets is
  // to be stored. Only if the members are alike.
  TargetSide& direct();

 private:
  struct Staged {
    Staged(const plan::Program& direct, TensorMemory from, const TensorMemory& to)
        : program(direct),
          source(program, plan::BoundSide::source, std::move(from)),
          target(program, to) {}
    plan::Program program;
    Staging source;
    TargetSide target;
  };

  void copy_packed(std::size_t chunk, std::span<const copy::Sources> members);
  void unpack(const plan::Program& program, std::size_t chunk, Wires wires);

  TargetSide& target();
  // Of those that there are.
  template <typename Holds>
  bool all_of(Holds holds) {
    return (!direct_ || holds(*direct_)) && (!target_ || holds(*target_)) &&
           (!staged_ || holds(staged_->target));
  }

  Read read_;
  std::shared_ptr<Bound> bound_;
  TensorMemory memory_;  // of the targets
  std::optional<TargetSide> direct_;
  std::optional<TargetSide> target_;
  std::optional<ChunkPieces>
      pieces_;  // of the target's program, once several threads have scattered
  std::unique_ptr<Staged> staged_;
  std::size_t chunk_count_;
  copy::Caches caches_;
  std::vector<std::vector<std::byte>> wires_;  // of members with different strides
};

}  // namespace tensorbus::fabric
