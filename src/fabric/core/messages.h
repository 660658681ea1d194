// Connections to other processes, and small messages over them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fabric/core/peer.h"
#include "tensorbus/deadline.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {

// Every fabric carries messages up to this size: one fragment of the narrowest.
inline constexpr std::size_t max_message_bytes = 60'000;

struct Message {
  std::shared_ptr<Peer> from;
  std::string bytes;
};
// A connection that this fabric opened or accepted is ready for use.
struct PeerUp {
  std::shared_ptr<Peer> peer;
};
// Comes once for every connect() and every PeerUp, after the completions of the connection's
// operations.
struct PeerLost {
  std::shared_ptr<Peer> peer;
  Status reason;
};

// Whom messages are given as they come.
class Receiver {
 public:
  // Within poll(), of which it must make no other. The bytes are valid until it returns.
  virtual void on_message(Peer& from, std::string_view message) = 0;

 protected:
  ~Receiver() = default;
};

class Messages {
 public:
  virtual const Address& address() const noexcept = 0;

  // PeerUp or PeerLost follows: unreachable, denied, timeout, or invalid_argument when another
  // process answers than the address names. `secret` is the remote fabric's.
  virtual std::shared_ptr<Peer> connect(const Address& remote, const std::string& secret,
                                        Deadline deadline) = 0;
  // PeerLost follows on both sides; operations that run on the connection end as cancelled. Does
  // nothing if the peer is lost already, whether PeerLost has been told or not.
  virtual void disconnect(Peer& peer) = 0;
  // From now on the host at this address may connect to this fabric, if only some may. `who` is the
  // caller's name for that host: the address that the name had before is forgotten, and without an
  // address the host may connect no more. For fabrics of networks; others know who calls them
  // anyway.
  virtual void admit(const std::string& /*who*/, const std::optional<Address>& /*address*/) {}

  // From now on messages may go straight to the receiver, which is borrowed, and not become events;
  // never one before an event that came earlier. For callers to whom an event per message costs too
  // much. A fabric may go on with events.
  virtual void hand_to(Receiver& /*receiver*/) {}

  // Messages arrive in order, once each; a message is copied out before the call returns and has at
  // most max_message_bytes. Error(queue_full) when the peer does not take messages; try again after
  // a poll().
  virtual void send(Peer& peer, std::span<const std::byte> message) = 0;

 protected:
  ~Messages() = default;
};

}  // namespace tensorbus::fabric
