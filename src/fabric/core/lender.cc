#include "fabric/core/lender.h"

#include <cerrno>

#include "os/process/process.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {

Probe own_probe() {
  static const Id16 value = random_id();
  return {reinterpret_cast<std::uint64_t>(value.data()), value};
}

Lender::Lender(os::Fd pidfd, const Probe& probe)
    : pidfd_(std::move(pidfd)), probe_(probe), pid_(os::pid_of(pidfd_)) {
  if (pid_ == 0) {
    throw Error(Code::denied,
                ended() ? "the process has ended" : "the process is in another pid namespace");
  }
  Id16 found{};
  const iovec local{found.data(), found.size()};
  const iovec remote{reinterpret_cast<void*>(probe_.address), found.size()};
  const int failure = os::read_process_memory(pid_, {&local, 1}, {&remote, 1});
  if (failure != 0) throw Error(Code::denied, os::errno_message("process_vm_readv", failure));
  if (found != probe_.value) throw Error(Code::denied, "another process has its pid here");
}

bool Lender::ended() const noexcept { return os::has_ended(pidfd_); }

void Lender::read(std::span<const iovec> local, std::span<const iovec> remote) const {
  check(os::read_process_memory(pid_, local, remote), "read");
}

void Lender::write(std::span<const iovec> local, std::span<const iovec> remote) const {
  if (ended()) check(ESRCH, "write");
  check(os::write_process_memory(pid_, local, remote), "write");
}

void Lender::check(int failure, const char* what) const {
  const std::string name = "process " + std::to_string(pid_);
  if (failure == ESRCH || ended()) throw Error(Code::peer_lost, name + " died; its memory is gone");
  if (failure == 0) return;
  std::string message =
      os::errno_message(std::string("cannot ") + what + " the memory of " + name, failure);
  if (failure == EFAULT) message += "; it was freed, or is read-only there";
  throw Error(Code::failed, message);
}

}  // namespace tensorbus::fabric
