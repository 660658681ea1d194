// A submitted command at the client, whichever channel carries it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "bus/channel/channel.h"

namespace tensorbus::bus {

class PendingCommand final : public Pending {
 public:
  // Takes in what the agent says until the command is over or the deadline passes, on the thread of
  // whoever waits. False: that thread cannot listen, another thread tells the outcome.
  using Listen = std::function<bool(const PendingCommand&, Deadline)>;

  // `what` names the command in messages; `cancel` passes a cancellation on and must not block.
  PendingCommand(CommandId id, std::string what, std::function<void(const Status&)> cancel,
                 Listen listen = nullptr);

  CommandId id() const noexcept override { return id_; }
  bool done() const noexcept override { return done_.load(std::memory_order_acquire); }
  std::int64_t bytes_done() const noexcept override { return bytes_done_.load(); }
  std::int64_t bytes_total() const noexcept override { return bytes_total_.load(); }
  const Outcome& wait(Deadline deadline) override;
  void cancel(const Status& reason) noexcept override;
  void on_done(std::function<void()> call) override;

  // The first outcome counts; later ones are ignored.
  void complete(Outcome outcome);
  void progress(std::int64_t done, std::int64_t total) noexcept;

 private:
  const CommandId id_;
  const std::string what_;
  const std::function<void(const Status&)> cancel_;
  const Listen listen_;
  std::atomic<bool> done_{false};
  std::atomic<std::int64_t> bytes_done_{0};
  std::atomic<std::int64_t> bytes_total_{0};
  Mutex mutex_;
  std::condition_variable changed_;
  Outcome outcome_;  // never changes once done_
  std::vector<std::function<void()>> calls_ GUARDED_BY(mutex_);
};

// "transfer of batch "weights"", for messages.
std::string describe(const Command& command);

}  // namespace tensorbus::bus
