#include "os/process/process.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "tensorbus/status.h"

namespace tensorbus::os {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (!std::getline(file, boot)) throw Error(Code::failed, "/proc has no boot id");
  return boot;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  return name.data();
}

std::string host_key() {
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) != 0) throw_errno("/proc/self/ns/net");
  return boot_id() + " net:" + std::to_string(network.st_ino);
}

namespace {

std::uint64_t start_time_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string text;
  std::getline(file, text);
  // The name in brackets may hold anything; the 20th field after it is the start time.
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) {
    throw Error(Code::unreachable, "there is no process " + process);
  }
  std::istringstream fields(text.substr(end + 1));
  std::string skipped;
  for (int i = 0; i < 19; ++i) fields >> skipped;
  std::uint64_t ticks = 0;
  if (!(fields >> ticks)) throw Error(Code::failed, "/proc/<pid>/stat is malformed");
  return ticks;
}

}  // namespace

std::uint64_t process_start_time(pid_t pid) { return start_time_of(std::to_string(pid)); }

std::uint64_t own_start_time() { return start_time_of("self"); }

Fd open_pidfd(pid_t pid) {
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) {
    throw Error(Code::unreachable,
                errno_message("cannot watch process " + std::to_string(pid), errno));
  }
  return fd;
}

bool has_ended(const Fd& pidfd) noexcept {
  pollfd descriptor{pidfd.get(), POLLIN, 0};
  return ::poll(&descriptor, 1, 0) > 0;
}

pid_t pid_of(const Fd& pidfd) {
  std::ifstream file("/proc/self/fdinfo/" + std::to_string(pidfd.get()));
  std::string name;
  while (file >> name) {
    pid_t pid = 0;
    if (name == "Pid:") return file >> pid && pid > 0 ? pid : 0;
  }
  return 0;
}

namespace {

using Move = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                         unsigned long);

int move_memory(Move move, pid_t pid, std::span<const iovec> local,
                std::span<const iovec> remote) noexcept {
  iovec at_local{};
  iovec at_remote{};
  std::size_t local_next = 0;
  std::size_t remote_next = 0;
  iovec locals[64];
  iovec remotes[64];
  // Both lists advance together: each call takes as many whole entries as fit and what is left of
  // those that the last call cut.
  while (true) {
    std::size_t local_count = 0;
    std::size_t remote_count = 0;
    std::size_t local_bytes = 0;
    std::size_t remote_bytes = 0;
    const auto fill = [](iovec& rest, std::size_t& next, std::span<const iovec> all, iovec* out,
                         std::size_t& count, std::size_t& bytes) {
      if (rest.iov_len > 0) {
        out[count++] = rest;
        bytes += rest.iov_len;
      }
      while (count < 64 && next < all.size()) {
        if (all[next].iov_len > 0) {
          out[count++] = all[next];
          bytes += all[next].iov_len;
        }
        ++next;
      }
    };
    const std::size_t local_first = local_next;
    const std::size_t remote_first = remote_next;
    const iovec local_rest = at_local;
    const iovec remote_rest = at_remote;
    fill(at_local, local_next, local, locals, local_count, local_bytes);
    fill(at_remote, remote_next, remote, remotes, remote_count, remote_bytes);
    const std::size_t bytes = std::min(local_bytes, remote_bytes);
    if (bytes == 0) return 0;
    const ssize_t got = move(pid, locals, local_count, remotes, remote_count, 0);
    if (got < 0) return errno;
    if (got == 0) return EFAULT;
    const auto advance = [](iovec rest, std::size_t first, std::span<const iovec> all,
                            std::size_t by, iovec& left, std::size_t& next) {
      left = rest;
      next = first;
      while (true) {
        if (left.iov_len > by) {
          left.iov_base = static_cast<char*>(left.iov_base) + by;
          left.iov_len -= by;
          return;
        }
        by -= left.iov_len;
        left = {};
        if (by == 0) return;
        left = all[next++];
      }
    };
    advance(local_rest, local_first, local, static_cast<std::size_t>(got), at_local, local_next);
    advance(remote_rest, remote_first, remote, static_cast<std::size_t>(got), at_remote,
            remote_next);
  }
}

bool allow_into_memory_of_self(unsigned long whom) {
  if (::prctl(PR_SET_PTRACER, whom, 0, 0, 0) == 0) return true;
  if (errno != EINVAL) throw_errno("PR_SET_PTRACER");
  return false;
}

}  // namespace

int read_process_memory(pid_t pid, std::span<const iovec> local,
                        std::span<const iovec> remote) noexcept {
  return move_memory(::process_vm_readv, pid, local, remote);
}

int write_process_memory(pid_t pid, std::span<const iovec> local,
                         std::span<const iovec> remote) noexcept {
  return move_memory(::process_vm_writev, pid, local, remote);
}

void block_signals_in_this_thread() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

bool allow_into_memory(pid_t pid) {
  return allow_into_memory_of_self(static_cast<unsigned long>(pid));
}

bool allow_all_into_memory() { return allow_into_memory_of_self(PR_SET_PTRACER_ANY); }

}  // namespace tensorbus::os
