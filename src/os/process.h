// Processes: who they are, whether they live, and reading their memory.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "os/fd.h"

namespace tensorbus::os {

// The same for all processes that share one kernel and one network namespace: they reach each
// other's abstract sockets.
std::string host_key();

// Clock ticks from boot to the start of a process. Error(unreachable) if there is none.
std::uint64_t process_start_time(pid_t pid);
// Of this one; right also where /proc shows another pid namespace than ours.
std::uint64_t own_start_time();

// Readable when the process ends. Error(unreachable) if it has.
Fd open_pidfd(pid_t pid);
bool has_ended(const Fd& pidfd) noexcept;

// Copies remote to local; the sums of both lengths are equal. The errno of the first failure, or 0.
// Says nothing about whether the process still was the one it should be: check its pidfd after.
int read_process_memory(pid_t pid, std::span<const iovec> local,
                        std::span<const iovec> remote) noexcept;

}  // namespace tensorbus::os
