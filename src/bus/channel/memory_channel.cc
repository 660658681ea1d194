#include "bus/channel/memory_channel.h"

#include <unistd.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/waiting.h"
#include "bus/channel/pending_command.h"
#include "os/io/poll.h"
#include "os/process/fork.h"

namespace tensorbus::bus {
namespace {

struct Accepted {
  std::shared_ptr<PendingCommand> pending;
  std::string type;
  std::string context;
};

// What both ends share.
struct SharedQueue {
  explicit SharedQueue(std::size_t most) : capacity(most) {}

  const std::size_t capacity;
  Mutex mutex;
  std::condition_variable room;
  Status stopped GUARDED_BY(mutex);  // why the agent takes no more commands, if it does not
  bool armed GUARDED_BY(mutex) = false;
  std::uint64_t sessions GUARDED_BY(mutex) = 0;
  std::vector<ChannelEvent> events GUARDED_BY(mutex);
  // In the order of acceptance, not of ids: two clients count for themselves.
  std::map<std::uint64_t, Accepted> queue GUARDED_BY(mutex);
  std::map<CommandId, std::uint64_t> position GUARDED_BY(mutex);
  std::uint64_t next_position GUARDED_BY(mutex) = 0;
  os::EventFd wake;

  void push(ChannelEvent event) REQUIRES(mutex) {
    events.push_back(std::move(event));
    if (std::exchange(armed, false)) wake.signal();
  }
  // Null if the command is over already.
  std::shared_ptr<PendingCommand> take(CommandId id) REQUIRES(mutex) {
    const auto found = position.find(id);
    if (found == position.end()) return nullptr;
    const auto entry = queue.find(found->second);
    std::shared_ptr<PendingCommand> pending = std::move(entry->second.pending);
    queue.erase(entry);
    position.erase(found);
    room.notify_one();
    return pending;
  }
};

Status gone() { return {Code::unreachable, "the agent of this process has been stopped"}; }

class MemoryConnection final : public Connection {
 public:
  MemoryConnection(std::shared_ptr<SharedQueue> shared, std::uint64_t session)
      : shared_(std::move(shared)), session_(session) {}
  ~MemoryConnection() override { close(); }

  std::shared_ptr<Pending> submit(const Command& command, std::shared_ptr<Loan> loan,
                                  Deadline command_deadline, Deadline accept_deadline) override {
    os::check_not_forked(made_in_, "client");
    Lock lock(shared_->mutex);
    wait_for_room(lock, accept_deadline);
    return enter(command, std::move(loan), command_deadline);
  }

  std::shared_ptr<Pending> begin(const Command& command, Deadline deadline) override {
    return submit(command, nullptr, deadline, deadline);
  }
  bool withdraw(Pending&) override { return true; }

  std::shared_ptr<Pending> post(const Command& command) noexcept override {
    if (made_in_ != os::fork_generation()) return nullptr;
    const Lock lock(shared_->mutex);
    if (closed_ || !shared_->stopped.ok()) return nullptr;
    return enter(command, nullptr, Deadline::never());
  }

  QueueState queue(Deadline) override {
    const Lock lock(shared_->mutex);
    QueueState state;
    state.size = shared_->queue.size();
    if (shared_->queue.empty()) return state;
    const Accepted& first = shared_->queue.begin()->second;
    state.first = first.pending->id();
    state.first_type = first.type;
    state.first_context = first.context;
    return state;
  }

  // Nobody outlives this process to remove it.
  void guard_semaphore(const std::string&, Deadline) override {}
  void release_semaphore(const std::string&) noexcept override {}
  std::int64_t agent_pid() const noexcept override { return ::getpid(); }

  void close() noexcept override {
    if (made_in_ != os::fork_generation()) return;
    std::vector<std::shared_ptr<PendingCommand>> orphans;
    {
      const Lock lock(shared_->mutex);
      if (std::exchange(closed_, true)) return;
      std::vector<CommandId> mine;
      for (const auto& [id, position] : shared_->position) {
        if (id.session == session_) mine.push_back(id);
      }
      for (const CommandId id : mine) orphans.push_back(shared_->take(id));
      if (shared_->stopped.ok()) shared_->push(SessionLost{session_, {}});
      shared_->room.notify_all();
    }
    for (const auto& pending : orphans) {
      pending->complete({.status = {Code::cancelled, "the client was closed"}});
    }
  }

 private:
  std::shared_ptr<Pending> enter(const Command& command, std::shared_ptr<Loan> loan,
                                 Deadline command_deadline) REQUIRES(shared_->mutex) {
    const CommandId id{session_, ++sequence_};
    const std::weak_ptr<SharedQueue> weak = shared_;
    auto pending =
        std::make_shared<PendingCommand>(id, describe(command), [weak, id](const Status& reason) {
          const auto shared = weak.lock();
          if (shared == nullptr) return;
          const Lock hold(shared->mutex);
          if (shared->position.contains(id)) shared->push(Cancelled{id, reason});
        });
    const std::uint64_t position = shared_->next_position++;
    shared_->queue.emplace(position,
                           Accepted{pending, std::string(type_of(command)), context_of(command)});
    shared_->position.emplace(id, position);
    shared_->push(Submission{id, command, command_deadline, std::move(loan)});
    return pending;
  }

  void wait_for_room(std::unique_lock<std::mutex>& lock, Deadline deadline)
      REQUIRES(shared_->mutex) {
    const auto has_room = [this]() REQUIRES(shared_->mutex) {
      if (closed_) throw Error(Code::failed, "this client is closed");
      if (!shared_->stopped.ok()) throw Error(shared_->stopped);
      return shared_->queue.size() < shared_->capacity;
    };
    if (wait(lock, shared_->room, deadline, has_room)) return;
    throw Error(Code::queue_full,
                "the agent's queue holds " + std::to_string(shared_->capacity) +
                    " commands that are not over; wait for some of them before the next");
  }

  const std::shared_ptr<SharedQueue> shared_;
  const std::uint64_t session_;
  const unsigned made_in_ = os::fork_generation();
  std::uint64_t sequence_ GUARDED_BY(shared_->mutex) = 0;
  bool closed_ GUARDED_BY(shared_->mutex) = false;
};

class MemoryChannelEnd final : public MemoryChannel {
 public:
  explicit MemoryChannelEnd(std::size_t capacity)
      : shared_(std::make_shared<SharedQueue>(capacity)) {}

  ~MemoryChannelEnd() override { fail(gone()); }

  void fail(const Status& why) noexcept override {
    std::map<std::uint64_t, Accepted> orphans;
    {
      const Lock lock(shared_->mutex);
      if (shared_->stopped.ok()) shared_->stopped = why;
      orphans.swap(shared_->queue);
      shared_->position.clear();
      // Loans go back now, not with the last client.
      shared_->events.clear();
      shared_->room.notify_all();
    }
    for (const auto& [position, accepted] : orphans) accepted.pending->complete({.status = why});
  }

  std::shared_ptr<Connection> connect() override {
    const Lock lock(shared_->mutex);
    const std::uint64_t session = ++shared_->sessions;
    shared_->push(SessionUp{session, ::getpid()});
    return std::make_shared<MemoryConnection>(shared_, session);
  }

  std::span<const ChannelEvent> poll() override {
    polled_.clear();
    const Lock lock(shared_->mutex);
    shared_->armed = false;
    shared_->wake.drain();
    polled_.swap(shared_->events);
    return polled_;
  }

  void complete(CommandId id, const Outcome& outcome) override {
    std::shared_ptr<PendingCommand> pending;
    {
      const Lock lock(shared_->mutex);
      pending = shared_->take(id);
    }
    if (pending != nullptr) pending->complete(outcome);
  }

  void progress(CommandId id, std::int64_t done, std::int64_t total) noexcept override {
    const Lock lock(shared_->mutex);
    const auto found = shared_->position.find(id);
    if (found != shared_->position.end()) {
      shared_->queue.at(found->second).pending->progress(done, total);
    }
  }

  bool arm() override {
    const Lock lock(shared_->mutex);
    shared_->armed = shared_->events.empty();
    return shared_->armed;
  }

  int fd() const noexcept override { return shared_->wake.get(); }

 private:
  const std::shared_ptr<SharedQueue> shared_;
  std::vector<ChannelEvent> polled_;
};

}  // namespace

std::unique_ptr<MemoryChannel> make_memory_channel(std::size_t capacity) {
  return std::make_unique<MemoryChannelEnd>(capacity);
}

}  // namespace tensorbus::bus
