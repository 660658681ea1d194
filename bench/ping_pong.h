// The floor of a round trip: 64 bytes through shared memory between two processes that spin, then
// sleep on a futex.
#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "fabric/conformance/two_hosts.h"
#include "rows.h"

namespace tensorbus::bench {

class PingPong {
 public:
  PingPong() : shared_(make_shared_memory()), responder_([this] { respond(); }) {}
  ~PingPong() { ::munmap(shared_, sizeof(Shared)); }
  PingPong(const PingPong&) = delete;
  PingPong& operator=(const PingPong&) = delete;

  // Seconds each.
  double round_trips(int count) {
    char message[64] = {};
    const TimePoint start = now();
    for (int i = 0; i < count; ++i) {
      shared_->ping.send(message);
      shared_->pong.receive(++turn_, message);
    }
    return seconds_since(start) / count;
  }

 private:
  struct alignas(64) Direction {
    std::atomic<std::uint32_t> count;
    std::atomic<std::uint32_t> sleeps;
    char message[64];

    void send(const char* text) {
      std::memcpy(message, text, sizeof message);
      count.fetch_add(1, std::memory_order_seq_cst);
      if (sleeps.exchange(0) != 0) ::syscall(SYS_futex, &count, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }
    void receive(std::uint32_t wanted, char* text) {
      for (int spins = 0; count.load(std::memory_order_acquire) != wanted; ++spins) {
        __builtin_ia32_pause();
        if (spins < 2000) continue;
        sleeps.store(1);
        if (count.load() == wanted) break;
        ::syscall(SYS_futex, &count, FUTEX_WAIT, wanted - 1, nullptr, nullptr, 0);
      }
      std::memcpy(text, message, sizeof message);
    }
  };
  struct Shared {
    Direction ping;
    Direction pong;
  };

  static Shared* make_shared_memory() {
    void* memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) os::throw_errno("mmap");
    return static_cast<Shared*>(memory);
  }
  [[noreturn]] void respond() {
    char message[64];
    for (std::uint32_t turn = 1;; ++turn) {
      shared_->ping.receive(turn, message);
      shared_->pong.send(message);
    }
  }

  Shared* shared_;
  std::uint32_t turn_ = 0;
  fabric::Child responder_;
};

}  // namespace tensorbus::bench
