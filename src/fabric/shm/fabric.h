// The fabric between processes of one host and one user: messages through rings, bytes out of
// shared or private memory.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "copy/crew.h"
#include "device/core/copier.h"
#include "device/cuda/device.h"
#include "fabric/core/fabric.h"
#include "fabric/core/pool.h"

namespace tensorbus::fabric {

struct ShmOptions {
  std::string name;            // Identity::name
  std::string secret;          // what those who connect must know
  std::shared_ptr<Pool> pool;  // whose memory peers map; null: an own one, for words only
  // Private memory is read with process_vm_readv where the kernel allows that; otherwise, or
  // without this option, the owner packs its memory.
  bool read_process_memory = true;
  const Clock* clock = &steady_clock();
  // Whose threads copy what is read here, and packed for others.
  std::shared_ptr<copy::Crew> crew = std::make_shared<copy::Crew>();
  // The devices of this process, each asked for when the first tensor on it comes.
  device::Copiers::Open open_device = &device::cuda::open;
};

// Listens at once. A peer that dies is lost at once; a peer that is not polled for 6 s (stopped, or
// stuck) is lost, too. Of no use in a forked child: the station says so.
std::unique_ptr<Fabric> make_shm_fabric(ShmOptions options);

}  // namespace tensorbus::fabric
