// The connections of one tcpstore:// client. Each exchange has a connection for itself, so that a
// wait blocks no other thread's call; connections are kept and used again.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "os/process/fork.h"
#include "store/torch/connection.h"

namespace tensorbus::store {

// Pauses between attempts at something nobody will tell us about, growing.
class Backoff {
 public:
  static constexpr Duration shortest_pause = std::chrono::milliseconds(1);
  static constexpr Duration longest_pause = std::chrono::milliseconds(50);

  // Ends early at the deadline; throws Error(cancelled) when stopped.
  void pause(const Until& until);

 private:
  Duration next_ = shortest_pause;
};

class TorchPool {
 public:
  // Waits for a server to listen, but not for one that hangs up on us to change its mind.
  TorchPool(StoreUrl::Host host, const Until& until);

  // Runs `exchange(connection)`, connecting first if need be (again and again until the deadline).
  // ConnectionLost comes only from the exchange: the request may or may not have been applied.
  template <typename Exchange>
  auto once(const Until& until, Exchange exchange) {
    TorchConnection connection = take(until);
    auto answer = exchange(connection);
    put_back(std::move(connection));
    return answer;
  }

  // The same for an exchange that may be applied twice: repeated until the deadline.
  template <typename Exchange>
  auto repeat(const Until& until, Exchange exchange) {
    for (Backoff backoff;;) {
      try {
        return once(until, exchange);
      } catch (const ConnectionLost& lost) {
        if (until.deadline.expired()) throw Error(Code::unreachable, lost.what());
      }
      backoff.pause(until);
    }
  }

  bool forked() const noexcept { return os::fork_generation() != generation_; }
  // Further exchanges fail with Error(cancelled).
  void close() noexcept;

 private:
  TorchConnection take(const Until& until);
  void put_back(TorchConnection connection);

  const StoreUrl::Host host_;
  const unsigned generation_ = os::fork_generation();
  Mutex mutex_;
  std::vector<TorchConnection> idle_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace tensorbus::store
