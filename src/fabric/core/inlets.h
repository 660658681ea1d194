// Memory that one peer writes into, for those who cannot wait until a reader asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "fabric/core/peer.h"
#include "fabric/core/pool.h"

namespace tensorbus::fabric {

// An inlet of a peer on this host. Mapped while the pointer is held.
struct SharedInlet {
  std::shared_ptr<std::byte> memory;
  std::size_t bytes = 0;
};

class Inlets {
 public:
  // Memory of ours that one peer writes into. On one host the peer maps the memory, and all of the
  // segment around it: the memory must be of `pool`, else Error(invalid_argument). On a network the
  // bytes come in messages, into any memory. The memory stays borrowed until the inlet is closed or
  // the peer lost. The peer knows the inlet before any message that is sent afterwards. Numbers of
  // inlets count from 1 and are never used again on that connection.
  virtual std::uint64_t open_inlet(Peer& peer, std::span<std::byte> memory, const Pool* pool) = 0;
  // What still comes over the network is dropped. On one host the peer may be writing at this
  // moment: agree with the peer first.
  virtual void close_inlet(Peer& peer, std::uint64_t inlet) = 0;
  // Into an inlet of the peer's. The bytes, any number, are copied out before the call returns and
  // are there before any message that is sent afterwards. To write outside of the inlet is
  // Error(invalid_argument), or the owner ends the connection.
  virtual void write(Peer& peer, std::uint64_t inlet, std::uint64_t offset,
                     std::span<const std::byte> bytes) = 0;
  // The peer's inlet where both processes see it: what is stored there is seen with the next
  // message. Nothing on a network, and for an inlet that was closed.
  virtual SharedInlet inlet(Peer& peer, std::uint64_t number) = 0;

 protected:
  ~Inlets() = default;
};

}  // namespace tensorbus::fabric
