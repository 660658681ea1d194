// What is known of exposed memory: by its owner, and by a peer that was told.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/core/identity.h"
#include "tensor/view.h"
#include "tensorbus/plan.h"

namespace tensorbus::fabric {

using tensorbus::TensorForm;
using Forms = std::vector<TensorForm>;

TensorForm form_of(const TensorView& view);
plan::Strides strides_of(const Forms& forms);
plan::Strides strides_of(std::span<const TensorView> tensors);

// How an owner tells a peer. Decoding checks everything and throws Error(invalid_argument).
std::string encode(const Forms& forms);
Forms decode_forms(std::string_view bytes);

// The bytes that the elements of a tensor touch, counted from its first element; both 0 for a
// tensor without elements. Error(invalid_argument) if the tensor is malformed or leads beyond 63
// bits.
struct Extent {
  std::int64_t begin = 0;  // negative with negative strides
  std::int64_t end = 0;
};
Extent extent_of(const TensorForm& form);

// Error(invalid_argument) unless the stream reads these tensors: then a program compiled for their
// strides stays inside their extents.
void check_source(const plan::Stream& stream, const Forms& forms);
void check_target(const plan::Stream& stream, std::span<const TensorView> targets);

// The stream as it reads tensors of these forms. An owner may hold tensors in the type that crosses
// the wire, narrower than their own: from there nothing is cast. Nothing: these tensors do not have
// what the stream reads.
std::optional<plan::Stream> stream_from(const Forms& forms, plan::Stream stream);

// All tensors of a region, each into one of the same shape. Source and target types may differ; the
// source's crosses the wire, so that the owner knows the stream without being told the target's.
plan::Stream whole_stream(const Forms& source, std::span<const Dtype> target,
                          std::int64_t chunk_bytes = plan::default_chunk_bytes);

// A gate counts upwards, at its owner, for all who read: memory offered under a ticket is lent
// while the gate has not passed it. To take memory back is to move the gate; what is read before
// and checked after is either whole or refused. `counter` lies where peers can see it.
class Gate {
 public:
  explicit Gate(std::shared_ptr<std::atomic<std::uint64_t>> counter)
      : counter_(std::move(counter)) {}

  bool open(std::uint64_t ticket) const noexcept {
    return counter_->load(std::memory_order_relaxed) <= ticket;
  }
  // After the last byte was read. Orders the loads of the bytes before the look at the gate.
  bool still_open(std::uint64_t ticket) const noexcept {
    std::atomic_thread_fence(std::memory_order_acquire);
    return open(ticket);
  }
  std::uint64_t value() const noexcept { return counter_->load(std::memory_order_relaxed); }
  // Past every ticket below `value`; never backwards. The owner writes to its memory only after the
  // gate has moved.
  void move_to(std::uint64_t value) noexcept;

  const std::shared_ptr<std::atomic<std::uint64_t>>& counter() const noexcept { return counter_; }

 private:
  std::shared_ptr<std::atomic<std::uint64_t>> counter_;
};

// Exposed memory, at its owner. Dropping the region withdraws the memory: the gate need not move,
// no new read finds the region, running ones fail. Drop regions before their fabric.
class Region {
 public:
  virtual ~Region() = default;
  virtual std::uint64_t number() const noexcept = 0;  // never used again by this fabric
  virtual const Forms& forms() const noexcept = 0;
  virtual Gate& gate() noexcept = 0;

  // Readers whose data must be packed here ask for a stream by its number. Both sides compute the
  // same stream; no stream is ever sent. 0 is whole_stream() and always known.
  virtual void serve(std::uint64_t number, plan::Stream stream) = 0;
};

// Tensors of a peer in memory of this process: by position, null if empty. What is written there
// stays here.
struct Alias {
  std::vector<std::byte*> tensors;
  std::shared_ptr<void> memory;
};

// A region of a peer, as an attach gave it. Valid as long as the pointer is held; reading from the
// region after the peer is lost is an error like any other.
class RemoteRegion {
 public:
  virtual ~RemoteRegion() = default;
  virtual std::uint64_t number() const noexcept = 0;
  virtual const Forms& forms() const noexcept = 0;
  // How the region's bytes will come: "mapped", "process_vm_readv", "packed", "network", or
  // "staged" from a device.
  virtual std::string_view path() const noexcept = 0;
  // The same to targets on a device: "device window" if they come from device to device, "staged"
  // or "network staged" otherwise. Known for sure when a read has ended.
  virtual std::string_view path_to_device() const noexcept { return "staged"; }
  // Without a copy, where the owner's memory can be mapped. Valid also when the peer is gone, but
  // shows what the owner writes later: both must have agreed that the owner writes no more.
  virtual std::optional<Alias> alias() const { return std::nullopt; }
};

// How the region's bytes come to these targets, of which some may be on a device.
std::string_view path_to(std::span<const TensorView> targets, const RemoteRegion& region);

}  // namespace tensorbus::fabric
