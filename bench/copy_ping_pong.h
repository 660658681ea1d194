// The floor of a push-pull on one host: two processes, one piece of shared memory, one copy each
// way, a flag that is spun on and then slept on. No keys, sizes, slots, deadlines or deaths.
#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <vector>

#include "fabric/conformance/two_hosts.h"
#include "os/io/fd.h"
#include "tensorbus/status.h"

namespace tensorbus::bench {

class CopyPingPong {
 public:
  explicit CopyPingPong(std::size_t bytes)
      : bytes_(bytes), push_(bytes), pull_(bytes), shared_(map(mapped())), echo_([this] {
          echo();
        }) {}
  ~CopyPingPong() { ::munmap(shared_, mapped()); }
  CopyPingPong(const CopyPingPong&) = delete;
  CopyPingPong& operator=(const CopyPingPong&) = delete;

  void round_trip() {
    std::memcpy(data(0), push_.data(), bytes_);
    tell(shared_->there);
    const timespec patience{60, 0};
    await(shared_->back, &patience);
    std::memcpy(pull_.data(), data(1), bytes_);
  }

 private:
  struct Flag {
    alignas(64) std::atomic<std::uint32_t> count;
    std::atomic<std::uint32_t> sleeps;
    alignas(64) std::uint32_t seen;  // the waiter's own
  };
  struct Shared {
    Flag there;
    Flag back;
  };
  static constexpr int spins = 2000;

  std::size_t mapped() const { return sizeof(Shared) + 2 * bytes_; }
  static Shared* map(std::size_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) os::throw_errno("mmap");
    return new (memory) Shared{};
  }
  std::byte* data(std::size_t way) const {
    return reinterpret_cast<std::byte*>(shared_ + 1) + way * bytes_;
  }

  static void tell(Flag& flag) {
    flag.count.fetch_add(1);
    if (flag.sleeps.load() != 0) {
      ::syscall(SYS_futex, &flag.count, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }
  }
  // Throws Error(timeout) when a sleep has lasted as long as `patience`: the other process is gone.
  static void await(Flag& flag, const timespec* patience) {
    for (int i = 0; flag.count.load(std::memory_order_acquire) == flag.seen; ++i) {
      __builtin_ia32_pause();
      if (i < spins) continue;
      flag.sleeps.store(1);
      const long slept =
          ::syscall(SYS_futex, &flag.count, FUTEX_WAIT, flag.seen, patience, nullptr, 0);
      if (slept != 0 && errno == ETIMEDOUT) {
        throw Error(Code::timeout, "the copy ping-pong gets no answer: its other process is gone");
      }
      flag.sleeps.store(0);
    }
    ++flag.seen;
  }

  // Ends with its parent, so it waits for as long as other things are measured.
  [[noreturn]] void echo() {
    for (;;) {
      await(shared_->there, nullptr);
      std::memcpy(data(1), data(0), bytes_);
      tell(shared_->back);
    }
  }

  std::size_t bytes_;
  std::vector<std::byte> push_;
  std::vector<std::byte> pull_;
  Shared* shared_;
  fabric::Child echo_;
};

}  // namespace tensorbus::bench
