#include "bus/channel/pending_command.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/overloaded.h"
#include "base/waiting.h"
#include "os/process/awake.h"

namespace tensorbus::bus {

PendingCommand::PendingCommand(CommandId id, std::string what,
                               std::function<void(const Status&)> cancel, Listen listen)
    : id_(id), what_(std::move(what)), cancel_(std::move(cancel)), listen_(std::move(listen)) {}

const Outcome& PendingCommand::wait(Deadline deadline) {
  thread_local os::Awake awake;
  while (!done()) {
    if (!deadline.expired() && listen_ && listen_(*this, deadline)) continue;
    if (!deadline.expired() && awake.until([this] { return done(); })) break;
    Lock lock(mutex_);
    if (done()) break;
    if (!Waiting(lock, deadline).sleep(changed_)) {
      throw Error(Code::timeout, what_ + " is not over yet");
    }
  }
  return outcome_;
}

void PendingCommand::cancel(const Status& reason) noexcept {
  if (done()) return;
  try {
    cancel_(reason);
  } catch (const std::exception& error) {
    log::warn("{} could not be cancelled: {}", what_, error.what());
  }
}

void PendingCommand::on_done(std::function<void()> call) {
  {
    const Lock lock(mutex_);
    if (!done()) {
      calls_.push_back(std::move(call));
      return;
    }
  }
  call();
}

void PendingCommand::complete(Outcome outcome) {
  std::vector<std::function<void()>> calls;
  {
    const Lock lock(mutex_);
    if (done()) return;
    outcome_ = std::move(outcome);
    if (outcome_.status.ok()) {
      std::int64_t bytes = outcome_.bytes;
      for (const auto& [path, moved] : outcome_.bytes_by_path) bytes += moved;
      progress(bytes, bytes);
    }
    done_.store(true, std::memory_order_release);
    calls.swap(calls_);
    changed_.notify_all();
  }
  for (const auto& call : calls) call();
}

void PendingCommand::progress(std::int64_t done, std::int64_t total) noexcept {
  bytes_total_.store(total);
  bytes_done_.store(done);
}

std::string describe(const Command& command) {
  const auto about = [&](std::string_view verb, std::string_view kind) {
    return fmt::format("{} of {} \"{}\"", verb, kind, context_of(command));
  };
  const auto of_batch =
      [&](const OneOf<RegisterBatch, QuerySignal, QueryVersions, CloseBatch, Publish, Shelve, Pull,
                      QueryNewest, QueryContents, QueryStage> auto&) {
        return about(type_of(command), "batch");
      };
  return std::visit(
      Overloaded{
          [&](const InitPair&) { return about(type_of(command), "pair"); },
          [&](const Transfer& transfer) { return about(to_string(transfer.direction), "batch"); },
          of_batch,
      },
      command);
}

}  // namespace tensorbus::bus
