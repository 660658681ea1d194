// Two hosts on one machine, for tests and benchmarks of the network: two network namespaces joined
// by a veth pair. The namespaces have no names: they vanish with the processes in them, so nothing
// is left behind even if the test is killed. Needs root.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "os/io/fd.h"
#include "os/testing/quiet_fork.h"
#include "os/testing/signals.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {

// A forked process that ends with this object and with its parent.
class Child {
 public:
  // `body` runs in the child, which exits afterwards; what `body` throws goes to standard error.
  explicit Child(const std::function<void()>& body);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  pid_t pid() const noexcept { return pid_; }
  void signal(int number) const;

 private:
  pid_t pid_ = -1;
};

// Length-prefixed strings between a parent and the child it forks after making this.
class Pipe {
 public:
  Pipe();
  void put(const std::string& text) const;
  std::string get() const;
  int readable() const noexcept { return read_.get(); }

 private:
  os::Fd read_;
  os::Fd write_;
};

class TwoHosts {
 public:
  // Empty, or why there can be none here.
  static std::string unavailable();

  TwoHosts();

  static std::string address(int host) { return host == 0 ? "10.77.0.1" : "10.77.0.2"; }
  // Moves the calling thread, and the threads and sockets it makes from now on.
  void enter(int host) const;
  // The same without a /sys that shows the host's devices: UCX needs that when it starts.
  void enter_network(int host) const;
  void set_link(bool up) const;

 private:
  pid_t pid(int host) const noexcept { return host == 0 ? first_.pid() : second_.pid(); }
  void run_in(int host, const std::string& command) const;

  Pipe ready_;
  Child first_;
  Child second_;
};

// Back to where the thread was; threads made in between stay where they are.
class NamespaceGuard {
 public:
  NamespaceGuard();
  ~NamespaceGuard();

 private:
  os::Fd network_;
  os::Fd mounts_;
};

namespace two_hosts_detail {

inline void run(const std::string& command) {
  const int result = std::system((command + " >/dev/null").c_str());
  if (result != 0) throw Error(Code::failed, fmt::format("\"{}\" gave {}", command, result));
}

inline void enter_namespace(const os::Fd& fd, int type) {
  if (::setns(fd.get(), type) != 0) os::throw_errno("setns");
}

inline os::Fd open_namespace(const std::string& type, const std::string& process) {
  const std::string path = fmt::format("/proc/{}/ns/{}", process, type);
  os::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) os::throw_errno(path);
  return fd;
}

// Keeps a new namespace alive.
inline void hold_a_namespace(const Pipe& ready) {
  if (::unshare(CLONE_NEWNET) != 0) os::throw_errno("unshare");
  ready.put("ready");
  for (;;) ::pause();
}

}  // namespace two_hosts_detail

inline Child::Child(const std::function<void()>& body) {
  pid_ = os::fork_child(body);
  if (pid_ < 0) os::throw_errno("fork");
}

inline Child::~Child() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

inline void Child::signal(int number) const { os::send_signal(pid_, number); }

inline Pipe::Pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) os::throw_errno("pipe");
  read_ = os::Fd(ends[0]);
  write_ = os::Fd(ends[1]);
}

inline void Pipe::put(const std::string& text) const {
  const auto size = static_cast<std::uint32_t>(text.size());
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  bytes += text;
  // Far below PIPE_BUF: all or nothing.
  if (::write(write_.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    os::throw_errno("writing to a pipe");
  }
}

inline std::string Pipe::get() const {
  pollfd fd{read_.get(), POLLIN, 0};
  if (::poll(&fd, 1, 60'000) != 1) throw Error(Code::timeout, "nothing comes through a pipe");
  const auto take = [this](char* to, std::size_t size) {
    while (size > 0) {
      const ssize_t got = ::read(read_.get(), to, size);
      if (got <= 0) throw Error(Code::failed, "the other end of a pipe is gone");
      to += got;
      size -= static_cast<std::size_t>(got);
    }
  };
  std::uint32_t size = 0;
  take(reinterpret_cast<char*>(&size), sizeof size);
  std::string text(size, '\0');
  take(text.data(), size);
  return text;
}

inline std::string TwoHosts::unavailable() {
  if (::geteuid() != 0) return "network namespaces need root; run as root to test the network";
  return {};
}

inline TwoHosts::TwoHosts()
    : first_([this] { two_hosts_detail::hold_a_namespace(ready_); }),
      second_([this] { two_hosts_detail::hold_a_namespace(ready_); }) {
  ready_.get();
  ready_.get();
  two_hosts_detail::run(fmt::format("ip link add tb0 netns {} type veth peer name tb0 netns {}",
                                    first_.pid(), second_.pid()));
  for (const int host : {0, 1}) {
    run_in(host, fmt::format("ip address add {}/24 dev tb0", address(host)));
    run_in(host, "ip link set lo up");
    run_in(host, "ip link set tb0 up");
  }
  // UCX passes over a device whose link is not up yet.
  for (const int host : {0, 1}) {
    run_in(host,
           "timeout 10 sh -c 'until ip link show dev tb0 | grep -q \"state UP\"; do :; done'");
  }
}

inline void TwoHosts::enter_network(int host) const {
  two_hosts_detail::enter_namespace(
      two_hosts_detail::open_namespace("net", std::to_string(pid(host))), CLONE_NEWNET);
}

inline void TwoHosts::enter(int host) const {
  enter_network(host);
  // /sys shows the devices of the namespace that mounted it, and UCX looks for them there.
  if (::unshare(CLONE_NEWNS) != 0) os::throw_errno("unshare");
  if (::mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) != 0) os::throw_errno("mounts");
  // Busy: a parent of this process has entered the same host, and its /sys was inherited.
  if (::mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0 && errno != EBUSY) {
    os::throw_errno("mounting /sys of a network namespace");
  }
}

inline void TwoHosts::set_link(bool up) const {
  run_in(1, up ? "ip link set tb0 up" : "ip link set tb0 down");
}

inline void TwoHosts::run_in(int host, const std::string& command) const {
  two_hosts_detail::run(fmt::format("nsenter -t {} -n {}", pid(host), command));
}

inline NamespaceGuard::NamespaceGuard()
    : network_(two_hosts_detail::open_namespace("net", "self")),
      mounts_(two_hosts_detail::open_namespace("mnt", "self")) {}

inline NamespaceGuard::~NamespaceGuard() {
  // A thread that shares its working directory with another thread, ThreadSanitizer's for one, may
  // not change its mounts.
  ::unshare(CLONE_FS);
  two_hosts_detail::enter_namespace(network_, CLONE_NEWNET);
  two_hosts_detail::enter_namespace(mounts_, CLONE_NEWNS);
}

}  // namespace tensorbus::fabric
