// A transfer at the client: its outcome, and a semaphore that counts the end of the transfer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bus/channel/channel.h"
#include "os/io/semaphore.h"
#include "os/process/interruptible.h"

namespace tensorbus::bus {

// An outcome that is no success, with all that it says.
class CommandError : public Error {
 public:
  explicit CommandError(const Outcome& outcome) : Error(outcome.status), outcome_(outcome) {}
  const Outcome& outcome() const noexcept { return outcome_; }

 private:
  Outcome outcome_;
};

// "/command_<type>_<context>_<pid>_<unique>": "/" and ":" of the context become "_", and it is cut
// so that the whole has at most 250 bytes.
std::string semaphore_name(const std::string& type, const std::string& context);

// Thread safe. Neither waiting nor dropping the state ends the transfer.
class TransferState : public std::enable_shared_from_this<TransferState> {
 public:
  // `settle` gives the memory back: called once, before anybody can learn that the transfer is
  // over.
  TransferState(std::shared_ptr<Pending> pending, std::shared_ptr<Connection> connection,
                std::string type, std::string context, std::function<void()> settle);
  ~TransferState();
  // After construction, once.
  void start();

  bool done();
  // The outcome, also one that is no success. Error(timeout) at the deadline.
  const Outcome& wait(Deadline deadline);
  // Throws CommandError unless the transfer succeeded.
  void result(Deadline deadline);
  void cancel(const Status& reason) noexcept { pending_->cancel(reason); }
  std::int64_t bytes_done() const noexcept { return pending_->bytes_done(); }
  std::int64_t bytes_total() const noexcept { return pending_->bytes_total(); }
  void on_done(std::function<void()> call) { pending_->on_done(std::move(call)); }

  // The end of the transfer counts the semaphore up by one. The semaphore gets its name in the
  // system when somebody first asks for the name; before, no other process can see it.
  const std::string& name(Deadline deadline);
  int value();
  // False at the deadline. Throws CommandError if the transfer failed. Once the transfer is over
  // and counted the name goes.
  bool acquire(Deadline deadline);
  void release();
  void unlink() noexcept;

 private:
  void settle() noexcept;

  const std::shared_ptr<Pending> pending_;
  const std::shared_ptr<Connection> connection_;
  const std::string type_;
  const std::string context_;
  Mutex settling_;
  std::function<void()> settle_ GUARDED_BY(settling_);  // empty once called

  Mutex mutex_;
  std::condition_variable counted_;
  int count_ GUARDED_BY(mutex_) = 0;  // while there is no named one
  bool posted_ GUARDED_BY(mutex_) = false;
  std::string name_ GUARDED_BY(mutex_);  // never changes once it is given
  std::unique_ptr<os::NamedSemaphore> semaphore_ GUARDED_BY(mutex_);
  bool linked_ GUARDED_BY(mutex_) = false;
};

// A call that other threads may end, and whose transfer they may watch. Thread safe.
class RunningCall {
 public:
  // Before the transfer begins, a wait of the thread that is Interruptible by waits() ends; from
  // then on the agent ends the transfer, and the call returns when nobody touches the memory any
  // more.
  void cancel() noexcept;
  // Only before the transfer begins. `why` lives for ever.
  void cancel_waits(const char* why) noexcept;
  // Why the call was ended before its transfer began, or null.
  const char* ended_early() const;
  // (0, 0) before the transfer begins.
  std::pair<std::int64_t, std::int64_t> progress() const;

  const os::Interruption& waits() const noexcept { return waits_; }
  void transfers(std::shared_ptr<TransferState> state) noexcept;

 private:
  os::Interruption waits_;
  mutable Mutex mutex_;
  const char* ended_early_ GUARDED_BY(mutex_) = nullptr;
  std::shared_ptr<TransferState> state_ GUARDED_BY(mutex_);
};

}  // namespace tensorbus::bus
