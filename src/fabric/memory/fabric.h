// The fabric inside one process: for tests, and for simulations of a whole cluster in one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fabric/core/fabric.h"

namespace tensorbus::fabric {

// What connects the fabrics of one thread. The fabrics outlive the hub.
class MemoryHub;
std::shared_ptr<MemoryHub> make_memory_hub();

// For simulations: every word of every connection that lives.
struct MemoryWord {
  const Identity& owner;
  const Identity& reader;
  std::uint64_t connection = 0;  // never used again
  std::uint32_t number = 0;
  std::uint64_t value = 0;
};
void visit_words(const MemoryHub& hub, const std::function<void(const MemoryWord&)>& visit);

// For simulations: the gates of all memory that is exposed and has its first tensor there.
void visit_gates(const MemoryHub& hub, const std::byte* memory,
                 const std::function<void(const Gate&)>& visit);
// For simulations: every region that is exposed.
struct MemoryExposed {
  const Identity& owner;
  const Forms& forms;
};
void visit_regions(const MemoryHub& hub, const std::function<void(const MemoryExposed&)>& visit);

// For simulations: sees every message, and says what is delivered in its place.
using MessageTap = std::function<std::vector<std::string>(
    const Identity& from, const Identity& to, std::uint64_t connection, std::string message)>;
void tap_messages(MemoryHub& hub, MessageTap tap);
// For simulations: every connection between fabrics of these names breaks.
void break_connections(MemoryHub& hub, const std::string& one, const std::string& other);

struct MemoryFabricOptions {
  std::string name;    // Identity::name
  std::string secret;  // what those who connect must know
  const Clock* clock = &steady_clock();
  // Whether what this peer says or does arrives now; what follows it waits, too. Empty: always.
  std::function<bool(const Identity& peer)> arrives = nullptr;
  // Whether a chunk is copied, or a word swapped, in this poll. Empty: always.
  std::function<bool(const Identity& peer)> proceeds = nullptr;
  // Of a connection that break_connections() breaks: whether a message that has not arrived is lost
  // with the connection; what follows such a message is lost, too. Empty: never.
  std::function<bool(const Identity& peer)> loses = nullptr;
  std::string host = "memory";  // Identity::host
  std::size_t most_waiting_messages = 1024;
  std::function<bool()> full = nullptr;  // whether others find it so, however few wait
  std::size_t most_words = 8192;         // of one connection
  bool watches = true;                   // words are in sight, as on one host
};

// Every poll() carries each read on by one chunk, so that anything can happen between two chunks.
// Dropping the fabric is, to its peers, the death of the process.
std::unique_ptr<Fabric> make_memory_fabric(std::shared_ptr<MemoryHub> hub,
                                           MemoryFabricOptions options);

}  // namespace tensorbus::fabric
