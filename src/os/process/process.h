// Processes: who they are, whether they live, and their memory.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "os/io/fd.h"

namespace tensorbus::os {

// New at every start of the machine.
std::string boot_id();

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
// Its pid as this process sees it; 0 if it cannot, or if it has ended.
pid_t pid_of(const Fd& pidfd);

// Copies remote to local, or local to remote; the sums of both lengths are equal. The errno of the
// first failure, or 0. Says nothing about whether the process still was the one it should be: check
// its pidfd after.
int read_process_memory(pid_t pid, std::span<const iovec> local,
                        std::span<const iovec> remote) noexcept;
int write_process_memory(pid_t pid, std::span<const iovec> local,
                         std::span<const iovec> remote) noexcept;

// Where Yama guards memory, lets one process of the same user into ours; it replaces the one before
// it. False without Yama: there is nothing to allow.
bool allow_into_memory(pid_t pid);
bool allow_all_into_memory();

}  // namespace tensorbus::os
