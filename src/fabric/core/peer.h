// A connection to another process.
#pragma once

#include "fabric/core/identity.h"

namespace tensorbus::fabric {

// The same on both sides, whoever opened the connection. The fabric keeps the peer while the
// connection lives, and a caller while the pointer is held; after PeerLost the peer is a name and
// nothing else.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual const Identity& identity() const noexcept = 0;
  virtual bool up() const noexcept = 0;  // between PeerUp and PeerLost
};

}  // namespace tensorbus::fabric
