// A process that lets this process into its private memory.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>

#include "fabric/core/identity.h"
#include "os/io/fd.h"

namespace tensorbus::fabric {

// Where a process keeps a value that nobody else knows: another process that finds the value there
// is let in.
struct Probe {
  std::uint64_t address = 0;
  Id16 value{};
};
Probe own_probe();

// A lender is known by its pidfd: a pid alone could become somebody else's. Addresses are the
// lender's.
class Lender {
 public:
  // Error(denied) if the kernel does not let this process in, with what the kernel said.
  Lender(os::Fd pidfd, const Probe& probe);

  pid_t pid() const noexcept { return pid_; }
  const os::Fd& pidfd() const noexcept { return pidfd_; }
  const Probe& probe() const noexcept { return probe_; }
  bool ended() const noexcept;

  // Copies between memory of ours and the lender's; the sums of both lengths are equal.
  // Error(peer_lost) if the lender has ended, also meanwhile: what was read may be anybody's then.
  // Error(failed) for any other reason.
  void read(std::span<const iovec> local, std::span<const iovec> remote) const;
  void write(std::span<const iovec> local, std::span<const iovec> remote) const;

 private:
  void check(int failure, const char* what) const;

  os::Fd pidfd_;
  Probe probe_;
  pid_t pid_ = 0;
};

}  // namespace tensorbus::fabric
