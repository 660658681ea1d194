// Between a worker and its agent: commands in, one outcome out for each. Two ends, an in-process
// implementation (embedded) and one over a Unix socket (daemon).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "bus/channel/command.h"
#include "bus/channel/loan.h"
#include "tensorbus/deadline.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {

// Commands that are accepted and not over; one more waits, then is queue_full.
inline constexpr std::size_t default_queue_capacity = 50'000;

struct Submission {
  CommandId id;
  Command command;
  Deadline deadline = Deadline::never();  // the agent ends the command with timeout then
  std::shared_ptr<Loan> loan;             // RegisterBatch: the tensors, in the order of its items
};
// The worker wants the command ended; the outcome still comes, as cancelled unless the command was
// over.
struct Cancelled {
  CommandId id;
  Status reason;
};
// A client is there; after a reconnect again, with the same session.
struct SessionUp {
  std::uint64_t session = 0;
  std::int64_t pid = 0;
};
// The client closed the session (ok) or died. The client's commands need no answer any more; the
// client's memory must not be touched.
struct SessionLost {
  std::uint64_t session = 0;
  Status reason;
};
using ChannelEvent = std::variant<Submission, Cancelled, SessionUp, SessionLost>;

// The agent's end. Owned and polled by the agent's loop; no call blocks. What poll() returns has
// been accepted: journaled where the channel has a journal, and owed exactly one complete().
class Channel {
 public:
  virtual ~Channel() = default;
  virtual std::span<const ChannelEvent> poll() = 0;  // valid until the next call
  virtual void complete(CommandId id, const Outcome& outcome) = 0;
  // The agent has failed and will do nothing more: every command that is not over ends so.
  virtual void fail(const Status& why) noexcept = 0;
  // Bytes moved of a transfer; a hint, may be dropped.
  virtual void progress(CommandId id, std::int64_t done, std::int64_t total) noexcept = 0;

  // To sleep: arm(); if true wait until fd() is readable, then poll(). False: there is work now.
  virtual bool arm() = 0;
  virtual int fd() const noexcept = 0;
  // When to poll() next although nothing is readable.
  virtual TimePoint wake_at() const noexcept { return TimePoint::max(); }
};

// A submitted command, at the client. Any thread may ask.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual CommandId id() const noexcept = 0;
  virtual bool done() const noexcept = 0;
  virtual std::int64_t bytes_done() const noexcept = 0;
  virtual std::int64_t bytes_total() const noexcept = 0;  // 0: not known yet
  // Throws Error(timeout) at the deadline and Error(interrupted) on a signal; both end nothing.
  virtual const Outcome& wait(Deadline deadline) = 0;
  // Asks the agent to end it; wait() still gives the outcome.
  virtual void cancel(const Status& reason) noexcept = 0;
  // Called once, on whatever thread learns the outcome; at once if it is there. Must not block.
  virtual void on_done(std::function<void()> call) = 0;
};

// What waits in the agent's queue: accepted and not over.
struct QueueState {
  std::size_t size = 0;
  std::optional<CommandId> first;
  std::string first_type;
  std::string first_context;
  friend bool operator==(const QueueState&, const QueueState&) = default;
};

// The client's end. Thread safe. submit() returns once the agent has accepted; it throws
// Error(queue_full) or Error(unreachable) at the deadline and Error(invalid_argument) for what the
// channel itself refuses. `command_deadline` goes with the command.
class Connection {
 public:
  virtual ~Connection() = default;
  virtual std::shared_ptr<Pending> submit(const Command& command, std::shared_ptr<Loan> loan,
                                          Deadline command_deadline, Deadline accept_deadline) = 0;
  // For a caller that waits for the outcome next, without waiting for the acceptance: a refusal is
  // the outcome. A caller that does not want to wait any longer asks withdraw() first.
  virtual std::shared_ptr<Pending> begin(const Command& command, Deadline deadline) = 0;
  // Ends the command unless the agent has accepted it. False: the agent does not say whether it
  // has.
  virtual bool withdraw(Pending& pending) = 0;
  // Submits without waiting for anything. Null if this end is closed.
  virtual std::shared_ptr<Pending> post(const Command& command) noexcept = 0;
  virtual QueueState queue(Deadline deadline) = 0;
  // The agent removes the named semaphore when this client is gone, or itself was restarted, unless
  // it was released before.
  virtual void guard_semaphore(const std::string& name, Deadline deadline) = 0;
  virtual void release_semaphore(const std::string& name) noexcept = 0;
  virtual std::int64_t agent_pid() const noexcept = 0;
  // Everything that is pending ends as cancelled; further calls fail.
  virtual void close() noexcept = 0;
};

}  // namespace tensorbus::bus
