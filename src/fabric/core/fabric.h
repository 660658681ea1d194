// The data plane: expose memory, let peers read it through programs, send them small messages,
// notice when they are gone.
#pragma once

#include <span>
#include <variant>

#include "fabric/core/inlets.h"
#include "fabric/core/messages.h"
#include "fabric/core/reads.h"
#include "tensorbus/deadline.h"

namespace tensorbus::fabric {

// The order of events is the order in which things happened on a connection.
using Event = std::variant<Completion, Message, PeerUp, PeerLost>;

// How a fabric gets on, and how to sleep until it can.
class Progress {
 public:
  // Does what there is to do, at most a few chunks of copying, and says what happened. Valid until
  // the next call.
  virtual std::span<const Event> poll() = 0;

  // To sleep: arm(); if arm() returns true, wait until fd() is readable or wake_at() has come, then
  // poll(). False: there is work now.
  virtual bool arm() = 0;
  virtual int fd() const noexcept = 0;
  virtual TimePoint wake_at() const noexcept = 0;

 protected:
  ~Progress() = default;
};

// Owned and polled by one thread; no call blocks. Calls throw Error for what is wrong with the call
// itself (invalid_argument, peer_lost, queue_full), and then nothing was started; all else comes as
// an event.
class Fabric : public Messages, public Reads, public Inlets, public Progress {
 public:
  // Everything that runs is dropped without events; nothing borrowed is touched afterwards.
  virtual ~Fabric() = default;
};

}  // namespace tensorbus::fabric
