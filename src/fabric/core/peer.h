// A connection to another process.
#pragma once

#include "fabric/core/identity.h"

namespace tensorbus::fabric {

// Whoever opened it. Kept by the fabric while it lives and by whoever holds it; after PeerLost it
// is a name and nothing else.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual const Identity& identity() const noexcept = 0;
  virtual bool up() const noexcept = 0;  // between PeerUp and PeerLost
};

}  // namespace tensorbus::fabric
