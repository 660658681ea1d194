// The thread that drives an endpoint, and how other threads give that thread work.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "endpoint/core.h"
#include "os/io/poll.h"

namespace tensorbus::endpoint {

// Work for the loop, from any thread.
class Mailbox {
 public:
  using Work = std::function<void(Core&)>;

  // False if the loop has ended.
  bool post(Work work);

  std::vector<Work> take();
  // Returns the last work; there is no more.
  std::vector<Work> close();
  // To sleep: false if there is work. Then wait for fd() and call awake().
  bool sleep();
  void awake();
  int fd() const noexcept { return bell_.get(); }

 private:
  os::EventFd bell_;
  Mutex mutex_;
  std::vector<Work> work_ GUARDED_BY(mutex_);
  bool sleeping_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
};

// Spins briefly after something happened, then sleeps until the station or a caller wakes the loop.
class Loop {
 public:
  explicit Loop(std::unique_ptr<Core> core);
  // Ends the thread, and on it the core.
  ~Loop();

  const std::shared_ptr<Mailbox>& mailbox() const noexcept { return mailbox_; }

 private:
  void run(std::unique_ptr<Core> core);

  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tensorbus::endpoint
