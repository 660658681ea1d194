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

// The key is the same for all processes that share one kernel and one network namespace: such
// processes reach each other's abstract sockets.
std::string host_key();

// As people call this machine.
std::string host_name();

// Clock ticks from boot to the start of a process. Error(unreachable) if there is none.
std::uint64_t process_start_time(pid_t pid);
// Of this process; right also where /proc shows another pid namespace than ours.
std::uint64_t own_start_time();

// The first call of a thread of ours: signals belong to the application's threads. A signal that
// lands in a thread of ours interrupts no wait of the application, and SIGPIPE would end the
// process.
void block_signals_in_this_thread() noexcept;

// A descriptor that is readable when the process ends. Error(unreachable) if the process has ended.
Fd open_pidfd(pid_t pid);
bool has_ended(const Fd& pidfd) noexcept;
// The pid of that process as this one sees it; 0 if that process cannot be seen from here, or has
// ended.
pid_t pid_of(const Fd& pidfd);

// Copies remote to local, or local to remote; the sums of both lengths are equal. The errno of the
// first failure, or 0. Says nothing about whether the pid still was the process that is meant:
// check the pidfd afterwards.
int read_process_memory(pid_t pid, std::span<const iovec> local,
                        std::span<const iovec> remote) noexcept;
int write_process_memory(pid_t pid, std::span<const iovec> local,
                         std::span<const iovec> remote) noexcept;

// Where Yama guards memory, lets one process of the same user into ours, and no longer the one that
// was let in before. False without Yama: there is nothing to allow.
bool allow_into_memory(pid_t pid);
bool allow_all_into_memory();

}  // namespace tensorbus::os
