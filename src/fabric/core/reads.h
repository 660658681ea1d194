// Memory that peers read through programs, and words that they swap.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fabric/core/lender.h"
#include "fabric/core/peer.h"
#include "fabric/core/region.h"
#include "tensor/view.h"
#include "tensorbus/deadline.h"
#include "tensorbus/plan.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {

// Chosen by the caller; one operation at a time has a number.
enum class OpId : std::uint64_t {};

// A 64-bit word at its owner that one peer may compare-and-swap: on one host both ends touch the
// same memory, on a network the owner's fabric swaps when asked. A word is valid as long as the
// Peer that it was made for; its number is never used again on that connection.
struct Word {
  std::uint32_t number = 0;
  std::atomic<std::uint64_t>* value = nullptr;
};

// One member of the group that a stream reads from.
struct Source {
  std::shared_ptr<Peer> peer;
  std::shared_ptr<const RemoteRegion> region;
  std::uint64_t ticket = 0;
};

struct Read {
  std::shared_ptr<const plan::Stream> stream;
  std::uint64_t stream_number = 0;  // as the owners serve it; 0: whole_stream() of the region
  std::vector<Source> sources;      // in the order of stream->source.ranks
  std::vector<TensorView> targets;  // by position in the batch
  std::shared_ptr<const Lender> lender = nullptr;  // of targets that are elsewhere
};

// Compare-and-swap of a peer's word, only while the gate of `source` is open for its ticket. On one
// host that gate is checked after an acquire fence, on a network by the owner.
struct Swap {
  Source source;
  std::uint32_t word = 0;
  std::uint64_t expected = 0;
  std::uint64_t desired = 0;
};

// An operation is over: nothing that it borrowed is touched any more.
struct Completion {
  OpId id{};
  Status status;
  std::uint64_t value = 0;  // swap: what the word was; equal to expected: swapped
  std::shared_ptr<const RemoteRegion> region;  // attach
};

// Every started operation gets exactly one Completion: ok, timeout at its deadline, cancelled,
// withdrawn (the gate passed the ticket), peer_lost (naming the peer) or failed.
class Reads {
 public:
  // A gate that peers can see, at 0.
  virtual Gate make_gate() = 0;
  // The memory stays borrowed until the Region is dropped. Tensors may be of any stride, empty, and
  // many. Without a gate the region gets its own; one from elsewhere lies in memory that the pool
  // adopted. `lender` has the tensors that are elsewhere.
  std::unique_ptr<Region> expose(std::span<const TensorView> tensors) {
    return expose(tensors, make_gate(), nullptr);
  }
  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate) {
    return expose(tensors, std::move(gate), nullptr);
  }
  virtual std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                         std::shared_ptr<const Lender> lender) = 0;

  // Asks the owner for a region: its forms and how to read the tensors.
  virtual void attach(Peer& peer, std::uint64_t region, OpId id, Deadline deadline) = 0;
  // `targets` stay borrowed, memory and shapes, until poll() returns `id`, also after cancel(id).
  // What the targets hold after anything but ok is undefined. ok says that the gates were open
  // after the last byte was read.
  virtual void read(Read read, OpId id, Deadline deadline) = 0;
  // About how many bytes a running read has put in place; for people who watch it.
  virtual std::int64_t bytes_read(OpId id) const noexcept = 0;

  // Error(queue_full) when the connection has used up its words.
  virtual Word make_word(Peer& peer, std::uint64_t initial) = 0;
  virtual void swap(const Swap& swap, OpId id, Deadline deadline) = 0;
  // The peer's word where both see it, or null on a network: there the owner sends messages.
  virtual const std::atomic<std::uint64_t>* watch(Peer& peer, std::uint32_t word) = 0;

  // The operation's completion still comes, as cancelled unless it was over. An unknown id is
  // ignored.
  virtual void cancel(OpId id) noexcept = 0;

 protected:
  ~Reads() = default;
};

}  // namespace tensorbus::fabric
