// The fabric inside one process: for tests, and for simulations of a whole cluster in one thread.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "fabric/fabric.h"

namespace tensorbus::fabric {

// What connects the fabrics of one thread. Outlived by them.
class MemoryHub;
std::shared_ptr<MemoryHub> make_memory_hub();

struct MemoryFabricOptions {
  std::string name;    // Identity::name
  std::string secret;  // what those who connect must know
  const Clock* clock = &steady_clock();
};

// Every poll() carries each read on by one chunk, so that anything can happen between two chunks.
// Dropping it is, to its peers, the death of the process.
std::unique_ptr<Fabric> make_memory_fabric(std::shared_ptr<MemoryHub> hub,
                                           MemoryFabricOptions options);

}  // namespace tensorbus::fabric
