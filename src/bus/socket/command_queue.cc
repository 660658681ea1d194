#include "bus/socket/command_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace tensorbus::bus {
namespace {

// How long the end of a command waits for the next command, to be written with it.
constexpr Duration ends_wait = std::chrono::milliseconds(50);
// Before the file is written again after it could not be.
constexpr Duration between_writes = std::chrono::milliseconds(500);

}  // namespace

CommandQueue::CommandQueue(const SocketChannelOptions& options, std::vector<ChannelEvent>& events,
                           Tell tell)
    : options_(options),
      events_(events),
      tell_(std::move(tell)),
      journal_(options.queue_path, options.journal_bytes) {}

void CommandQueue::submit(std::uint64_t session, protocol::Submit submit, std::vector<os::Fd> fds) {
  Held held{session, std::move(submit), std::move(fds)};
  if (journal_.state().size >= options_.capacity || waits(session)) {
    held_.push_back(std::move(held));
    return;
  }
  accept(std::move(held));
}

bool CommandQueue::waits(std::uint64_t session) const {
  return std::any_of(held_.begin(), held_.end(),
                     [&](const Held& held) { return held.session == session; });
}

void CommandQueue::admit_held() {
  while (!held_.empty() && journal_.state().size < options_.capacity) {
    Held held = std::move(held_.front());
    held_.pop_front();
    accept(std::move(held));
  }
}

void CommandQueue::accept(Held held) {
  const CommandId id{held.session, held.submit.sequence};
  const auto session = journal_.sessions().find(held.session);
  if (session == journal_.sessions().end()) return;
  // The command was sent again: it was accepted before, and the client was told, or will be, what
  // came of it.
  if (id.sequence <= session->second.last_accepted) return;
  try {
    Submission submission = open(id, held);
    journal_.accept(id, submission.command, held.submit.command.bytes());
    if (!held.submit.quiet) tell_(id.session, protocol::Accepted{id.sequence});
    events_.push_back(std::move(submission));
  } catch (...) {
    tell_(id.session, protocol::Refused{id.sequence, current_exception_status()});
  }
}

Submission CommandQueue::open(CommandId id, Held& held) const {
  const auto& left = held.submit.time_left;
  Submission submission{id, held.submit.command.open(),
                        left ? Deadline::after(Duration(*left)) : Deadline::never(), nullptr};
  if (held.submit.loan) {
    submission.loan = options_.open_loan({std::move(*held.submit.loan), std::move(held.fds)});
  }
  return submission;
}

void CommandQueue::withdraw(std::uint64_t session, std::uint64_t sequence) {
  const auto found = std::find_if(held_.begin(), held_.end(), [&](const Held& held) {
    return held.session == session && held.submit.sequence == sequence;
  });
  if (found == held_.end()) {
    // Unless the command is over, which the client was told then.
    if (journal_.holds({session, sequence})) tell_(session, protocol::Accepted{sequence});
    return;
  }
  held_.erase(found);
  tell_(session, protocol::Refused{
                     sequence,
                     {Code::queue_full,
                      fmt::format("the agent's queue holds {} commands that are not over; wait "
                                  "for some of them before the next",
                                  options_.capacity)}});
}

void CommandQueue::cancel(std::uint64_t session, const protocol::Cancel& wish) {
  const CommandId id{session, wish.sequence};
  if (journal_.holds(id)) {
    events_.push_back(Cancelled{id, wish.reason});
  } else {
    withdraw(session, wish.sequence);
  }
}

void CommandQueue::complete(CommandId id, const Outcome& outcome) {
  if (!journal_.holds(id)) return;
  journal_.finish(id);
  tell_(id.session, protocol::Done{id.sequence, outcome});
  admit_held();
}

void CommandQueue::fail(const Status& why) {
  for (const Held& held : std::exchange(held_, {})) {
    tell_(held.session, protocol::Refused{held.submit.sequence, why});
  }
  events_.clear();
  while (const std::optional<CommandId> first = journal_.state().first) {
    complete(*first, {.status = why});
  }
}

void CommandQueue::guard_semaphore(std::uint64_t session, const protocol::GuardSemaphore& wish) {
  Status status;
  try {
    journal_.guard_semaphore(session, wish.name);
  } catch (...) {
    status = current_exception_status();
  }
  tell_(session, protocol::Guarded{wish.request, status});
}

void CommandQueue::end_session(std::uint64_t session) {
  std::erase_if(held_, [&](const Held& held) { return held.session == session; });
  journal_.remove_session(session);
}

void CommandQueue::write_ends() noexcept {
  if (journal_.flushed()) {
    write_at_ = TimePoint::max();
  } else if (write_at_ == TimePoint::max()) {
    write_at_ = now() + ends_wait;
  } else if (write_at_ <= now()) {
    write_ends_now();
  }
}

void CommandQueue::write_ends_now() noexcept {
  try {
    journal_.flush();
    write_at_ = TimePoint::max();
    if (std::exchange(cannot_write_, false)) log::info("commands are journaled again");
  } catch (const std::exception& error) {
    write_at_ = now() + between_writes;
    if (std::exchange(cannot_write_, true)) return;
    log::error("{}; new commands are refused until that is over", error.what());
  }
}

}  // namespace tensorbus::bus
