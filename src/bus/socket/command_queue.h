// The command queue of a daemon: what the daemon has accepted and owes an outcome, and what waits
// for room.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "bus/channel/channel.h"
#include "bus/files/queue_journal.h"
#include "bus/socket/channel.h"
#include "bus/socket/protocol.h"
#include "os/io/fd.h"

namespace tensorbus::bus {

class CommandQueue {
 public:
  // Says something to the client of a session, if it is there.
  using Tell = std::function<void(std::uint64_t session, const protocol::FromAgent&)>;

  // What is accepted, and what is to be cancelled, is added to `events`.
  CommandQueue(const SocketChannelOptions& options, std::vector<ChannelEvent>& events, Tell tell);

  QueueJournal& journal() noexcept { return journal_; }

  void submit(std::uint64_t session, protocol::Submit submit, std::vector<os::Fd> fds);
  // Not wanted any more unless it is accepted.
  void withdraw(std::uint64_t session, std::uint64_t sequence);
  void cancel(std::uint64_t session, const protocol::Cancel& wish);
  void complete(CommandId id, const Outcome& outcome);
  // Everything ends so, accepted or not.
  void fail(const Status& why);

  void guard_semaphore(std::uint64_t session, const protocol::GuardSemaphore& wish);
  void end_session(std::uint64_t session);
  // Accepts what has waited, when there is room.
  void admit_held();

  // Ends are written with the next command, or by this when none has come for a while. An end that
  // is not written yet harms nobody: whatever the next agent finds in the queue it only removes.
  // While the file cannot be written, now and then.
  void write_ends() noexcept;
  void write_ends_now() noexcept;
  // When to call write_ends() next; never if there is nothing to write.
  TimePoint write_at() const noexcept { return write_at_; }

 private:
  struct Held {
    std::uint64_t session = 0;
    protocol::Submit submit;
    std::vector<os::Fd> fds;
  };
  bool waits(std::uint64_t session) const;
  void accept(Held held);
  Submission open(CommandId id, Held& held) const;

  const SocketChannelOptions options_;
  std::vector<ChannelEvent>& events_;
  const Tell tell_;
  QueueJournal journal_;
  std::deque<Held> held_;  // the queue is full
  TimePoint write_at_ = TimePoint::max();
  bool cannot_write_ = false;
};

}  // namespace tensorbus::bus
