// The data plane: expose memory, let peers read it through programs, send them small messages,
// notice when they are gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "fabric/core/identity.h"
#include "fabric/core/lender.h"
#include "fabric/core/pool.h"
#include "fabric/core/region.h"
#include "tensor/view.h"
#include "tensorbus/deadline.h"
#include "tensorbus/plan.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {

// Chosen by the caller; one operation at a time has it.
enum class OpId : std::uint64_t {};

// Every fabric carries messages up to this size: one fragment of the narrowest.
inline constexpr std::size_t max_message_bytes = 60'000;

// A 64-bit word at its owner that one peer may compare-and-swap: on one host both ends touch the
// same memory, on a network the owner's fabric swaps when asked. Valid as long as the Peer it was
// made for; a number is never used again on that connection.
struct Word {
  std::uint32_t number = 0;
  std::atomic<std::uint64_t>* value = nullptr;
};

// A connection to a process, whoever opened it. Kept by the fabric while it lives and by whoever
// holds it; after PeerLost it is a name and nothing else.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual const Identity& identity() const noexcept = 0;
  virtual bool up() const noexcept = 0;  // between PeerUp and PeerLost
};

// An inlet of a peer on this host. Mapped while the pointer is held.
struct SharedInlet {
  std::shared_ptr<std::byte> memory;
  std::size_t bytes = 0;
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

// An operation is over: nothing that it borrowed is touched any more. The order of events is the
// order in which things happened on a connection.
struct Completion {
  OpId id{};
  Status status;
  std::uint64_t value = 0;  // swap: what the word was; equal to expected: swapped
  std::shared_ptr<const RemoteRegion> region;  // attach
};
struct Message {
  std::shared_ptr<Peer> from;
  std::string bytes;
};
// A connection that we opened or accepted is ready for use.
struct PeerUp {
  std::shared_ptr<Peer> peer;
};
// Comes once for every connect() and every PeerUp, after the completions of its operations.
struct PeerLost {
  std::shared_ptr<Peer> peer;
  Status reason;
};
using Event = std::variant<Completion, Message, PeerUp, PeerLost>;

// Owned and polled by one thread; no call blocks. Calls throw Error for what is wrong with the call
// itself (invalid_argument, peer_lost, queue_full), and then nothing was started; all else comes as
// an event. Every started operation gets exactly one Completion: ok, timeout at its deadline,
// cancelled, withdrawn (the gate passed the ticket), peer_lost (naming the peer) or failed.
class Fabric {
 public:
  // Everything that runs is dropped without events; nothing borrowed is touched afterwards.
  virtual ~Fabric() = default;

  virtual const Address& address() const noexcept = 0;

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

  // PeerUp or PeerLost follows: unreachable, denied, timeout, or invalid_argument when another
  // process answers than the address names. `secret` is the remote fabric's.
  virtual std::shared_ptr<Peer> connect(const Address& remote, const std::string& secret,
                                        Deadline deadline) = 0;
  // PeerLost follows on both sides; operations that run on it end as cancelled. Nothing if it is
  // lost already, told or not.
  virtual void disconnect(Peer& peer) = 0;
  // From now on the host of this process may connect to us, if only some may. `who` is the caller's
  // name for it: what it had before is forgotten, and without an address it may connect no more.
  // For fabrics of networks; others know their callers without it.
  virtual void admit(const std::string& /*who*/, const std::optional<Address>& /*address*/) {}

  // In order, once each, copied out before the call returns, at most max_message_bytes.
  // Error(queue_full) when the peer does not take them; try again after a poll().
  virtual void send(Peer& peer, std::span<const std::byte> message) = 0;

  // An inlet is memory of ours that one peer writes into, for those who cannot wait until a reader
  // asks. On one host the peer maps it, and all of the segment that it lies in: it must be memory
  // of `pool`, else Error(invalid_argument). On a network its bytes come in messages, into any
  // memory. Borrowed until the inlet is closed or the peer lost. Known to the peer before any
  // message that is sent afterwards. Numbers count from 1 and are never used again on that
  // connection.
  virtual std::uint64_t open_inlet(Peer& peer, std::span<std::byte> memory, const Pool* pool) = 0;
  // What still comes over the network is dropped. On one host a peer may be writing at this moment:
  // agree with it first.
  virtual void close_inlet(Peer& peer, std::uint64_t inlet) = 0;
  // Into an inlet of the peer's. Copied out before the call returns, any size; there before any
  // message that is sent afterwards. To write outside of it is Error(invalid_argument), or the
  // owner ends the connection.
  virtual void write(Peer& peer, std::uint64_t inlet, std::uint64_t offset,
                     std::span<const std::byte> bytes) = 0;
  // The peer's inlet where both see it: what is stored there is seen with the next message. Nothing
  // on a network, and for one that was closed.
  virtual SharedInlet inlet(Peer& peer, std::uint64_t number) = 0;

  // Asks the owner for a region: its forms and how to read them.
  virtual void attach(Peer& peer, std::uint64_t region, OpId id, Deadline deadline) = 0;
  // `targets` stay borrowed, memory and shapes, until poll() returns `id`, also after cancel(id).
  // What they hold after anything but ok is undefined. ok says that the gates were open after the
  // last byte was read.
  virtual void read(Read read, OpId id, Deadline deadline) = 0;
  // About how many bytes a running read has put in place; for people who watch it.
  virtual std::int64_t bytes_read(OpId id) const noexcept = 0;

  // Error(queue_full) when the connection has used up its words.
  virtual Word make_word(Peer& peer, std::uint64_t initial) = 0;
  virtual void swap(const Swap& swap, OpId id, Deadline deadline) = 0;
  // The peer's word where both see it, or null on a network: there the owner sends messages.
  virtual const std::atomic<std::uint64_t>* watch(Peer& peer, std::uint32_t word) = 0;

  // Its completion still comes, as cancelled unless it was over. An unknown id is ignored.
  virtual void cancel(OpId id) noexcept = 0;

  // Does what there is to do, at most a few chunks of copying, and says what happened. Valid until
  // the next call.
  virtual std::span<const Event> poll() = 0;

  // To sleep: arm(); if it says true, wait until fd() is readable or wake_at() has come, then
  // poll(). False: there is work now.
  virtual bool arm() = 0;
  virtual int fd() const noexcept = 0;
  virtual TimePoint wake_at() const noexcept = 0;
};

}  // namespace tensorbus::fabric
