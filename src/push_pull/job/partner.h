// The connection to one node of the other role, and the memory that each side lets the other write.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/core/fabric.h"
#include "fabric/core/inlets.h"
#include "fabric/core/messages.h"
#include "fabric/core/pool.h"
#include "push_pull/job/wire.h"

namespace tensorbus::push_pull {

// Memory of this node that the peer writes.
struct OwnSlot {
  std::shared_ptr<std::byte> memory;
  std::size_t bytes = 0;
  wire::InletPlace place;
};

// Memory of the peer's that this node writes.
struct PeerSlot {
  wire::InletPlace place;
  std::size_t bytes = 0;
  std::byte* memory = nullptr;  // null on a network
};

// Used under the loop's lock, until the peer is lost.
class Partner {
 public:
  // `transport` serves the peer.
  Partner(fabric::Fabric& transport, std::shared_ptr<fabric::Peer> peer, int group,
          std::string name);

  int group() const noexcept { return group_; }
  const std::string& name() const noexcept { return name_; }
  const fabric::Peer& peer() const noexcept { return *peer_; }
  // Both see the same memory.
  bool shares_memory() const noexcept { return shares_memory_; }

  const std::optional<Status>& lost() const noexcept { return lost_; }
  void lose(Status reason);
  void disconnect();

  // Sends in order; what the peer does not take waits. Nothing happens once the peer is lost.
  void send(std::string_view message);
  bool is_behind() const noexcept { return !outbox_.empty(); }
  // What waits, as far as it goes.
  void flush();
  // The pieces of a message that was too long for one, put together; nothing until the last.
  std::optional<std::string> assemble(std::string_view part);

  // Memory of this node for the peer to write. Error(failed) when memory is full.
  OwnSlot make_slot(std::size_t bytes);
  // The same of a tensor in a pool; nothing if the tensor lies elsewhere. On a network any memory
  // will do, for once: the caller closes it.
  std::optional<wire::InletPlace> open_in(const fabric::Pool& pool, const std::byte* data,
                                          std::size_t bytes);
  wire::InletPlace open_once(std::span<std::byte> memory);
  void close_once(const wire::InletPlace& place);
  // Gives segments that no slot uses back to the operating system.
  void trim();

  // The peer's memory at a place that it named, mapped as long as the peer needs the place; null on
  // a network. Error(failed) if there is no such place.
  std::byte* peer_memory(const wire::InletPlace& place, std::size_t bytes);
  std::atomic<std::uint64_t>* peer_word(const wire::InletPlace& place);
  // The peer has closed it.
  void forget_inlet(std::uint64_t number) { peer_inlets_.erase(number); }
  // To a place where both do not see it.
  void write(const wire::InletPlace& place, std::span<const std::byte> bytes);

 private:
  using Inlets = std::map<std::uint64_t, std::uint64_t>;  // by segment
  std::uint64_t inlet_of(const fabric::Pool& pool, Inlets& inlets, const std::byte* data,
                         const fabric::Place& place);
  void send_now(std::string_view message);
  const fabric::SharedInlet& peer_inlet(std::uint64_t number);

  fabric::Messages& messages_;
  fabric::Inlets& inlets_;
  std::shared_ptr<fabric::Peer> peer_;
  int group_;
  std::string name_;
  bool shares_memory_;
  std::optional<Status> lost_;
  std::deque<std::string> outbox_;
  std::string parts_;

  fabric::Pool slots_;
  Inlets slot_inlets_;
  Inlets pool_inlets_;
  std::map<std::uint64_t, fabric::SharedInlet> peer_inlets_;
};

}  // namespace tensorbus::push_pull
