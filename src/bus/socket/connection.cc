#include "bus/socket/connection.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/overloaded.h"
#include "base/secret.h"
#include "base/waiting.h"
#include "bus/files/queue_journal.h"
#include "bus/socket/agent_line.h"
#include "bus/socket/submitted.h"
#include "os/io/poll.h"
#include "os/process/awake.h"
#include "os/process/fork.h"

namespace tensorbus::bus {
namespace {

// How long an agent may take to say whether it had accepted something that is withdrawn.
constexpr Duration withdraw_time = std::chrono::seconds(1);

struct Question {
  bool answered = false;
  QueueState queue;
  Status status;
};

class SocketConnection final : public Connection,
                               public std::enable_shared_from_this<SocketConnection> {
 public:
  SocketConnection(SocketConnectionOptions options, Deadline deadline)
      : options_(std::move(options)), session_(random_number()) {
    Greeted agent = greet_agent(options_, session_, line_.wake(), closed_, false, deadline);
    const Lock lock(mutex_);
    line_.adopt(std::move(agent));
  }

  // Not in the constructor: cancellations refer to this object weakly.
  void start() {
    thread_ = std::thread([this] { run(); });
  }

  ~SocketConnection() override {
    close();
    if (made_in_ != os::fork_generation()) {
      // In a forked child the thread does not exist and its sockets are closed.
      thread_.detach();
      return;
    }
    if (thread_.get_id() == std::this_thread::get_id()) {
      *gone_ = true;
      thread_.detach();
    } else if (thread_.joinable()) {
      thread_.join();
    }
  }

  std::shared_ptr<Pending> submit(const Command& command, std::shared_ptr<Loan> loan,
                                  Deadline command_deadline, Deadline accept_deadline) override {
    os::check_not_forked(made_in_, "client");
    Lock lock(mutex_);
    if (closed_) throw Error(Code::failed, "this client is closed");
    if (const auto* close = std::get_if<CloseBatch>(&command))
      commands_.forget(close->registration);
    const auto entry = std::make_shared<Submitted>();
    entry->command = command;
    entry->loan = std::move(loan);
    entry->deadline = command_deadline;
    enter(entry);
    try {
      await(lock, accept_deadline, [&] { return entry->state != Submitted::State::submitted; });
    } catch (const Error& error) {
      withdraw(lock, entry, error);
    }
    if (entry->state == Submitted::State::refused) throw Error(entry->refusal);
    return entry->pending;
  }

  std::shared_ptr<Pending> begin(const Command& command, Deadline deadline) override {
    os::check_not_forked(made_in_, "client");
    const Lock lock(mutex_);
    if (closed_) throw Error(Code::failed, "this client is closed");
    const auto entry = std::make_shared<Submitted>();
    entry->command = command;
    entry->deadline = deadline;
    entry->quiet = true;
    enter(entry);
    return entry->pending;
  }

  bool withdraw(Pending& pending) override {
    SubmittedPtr entry;
    try {
      Lock lock(mutex_);
      entry = commands_.find(pending);
      if (entry == nullptr || entry->state != Submitted::State::submitted) return true;
      withdraw(lock, entry, Error(Code::timeout, "the agent has not answered"));
      return true;
    } catch (const Error& error) {
      entry->pending->complete({.status = error.status()});
      return false;
    }
  }

  std::shared_ptr<Pending> post(const Command& command) noexcept override {
    if (made_in_ != os::fork_generation()) return nullptr;
    const Lock lock(mutex_);
    if (closed_) return nullptr;
    if (const auto* close = std::get_if<CloseBatch>(&command))
      commands_.forget(close->registration);
    const auto entry = std::make_shared<Submitted>();
    entry->command = command;
    enter(entry);
    if (line_.up()) line_.wake().signal();  // nobody waits for it
    return entry->pending;
  }

  QueueState queue(Deadline deadline) override {
    const auto request = ask([](std::uint64_t number) { return protocol::Look{number}; }, deadline);
    return request->queue;
  }

  void guard_semaphore(const std::string& name, Deadline deadline) override {
    const auto request = ask(
        [&](std::uint64_t number) {
          return protocol::GuardSemaphore{number, name};
        },
        deadline);
    if (!request->status.ok()) throw Error(request->status);
  }

  void release_semaphore(const std::string& name) noexcept override {
    const Lock lock(mutex_);
    line_.send(protocol::ReleaseSemaphore{name});
  }

  std::int64_t agent_pid() const noexcept override { return line_.agent_pid(); }

  void close() noexcept override {
    if (made_in_ != os::fork_generation()) return;
    const Status reason{Code::cancelled, "the client was closed"};
    std::vector<SubmittedPtr> orphans;
    {
      const Lock lock(mutex_);
      if (closed_.exchange(true)) return;
      line_.send(protocol::Bye{});
      line_.drop();
      orphans = commands_.close(reason);
      changed_.notify_all();
      line_.wake().signal();
    }
    for (const SubmittedPtr& entry : orphans) entry->pending->complete({.status = reason});
  }

 private:
  Error unreachable(const std::string& found) const { return unreachable_agent(options_, found); }

  // --- under the mutex ----------------------------------------------------------------------

  // For the first time, or with an agent that has come back.
  void enter(const SubmittedPtr& entry) REQUIRES(mutex_) {
    commands_.enter(entry);
    if (entry->pending == nullptr) entry->pending = make_pending(entry);
    send_entry(*entry);
  }

  std::shared_ptr<PendingCommand> make_pending(const SubmittedPtr& entry) {
    const std::weak_ptr<SocketConnection> connection = weak_from_this();
    const std::weak_ptr<Submitted> weak = entry;
    return std::make_shared<PendingCommand>(
        CommandId{session_, entry->sequence}, describe(entry->command),
        [connection, weak](const Status& reason) {
          const auto self = connection.lock();
          const auto cancelled = weak.lock();
          if (self != nullptr && cancelled != nullptr) self->cancel(*cancelled, reason);
        },
        [connection, weak](const PendingCommand& pending, Deadline deadline) {
          const auto self = connection.lock();
          const auto awaited = weak.lock();
          return self != nullptr && awaited != nullptr && self->listen(pending, *awaited, deadline);
        });
  }

  void send_entry(Submitted& entry) REQUIRES(mutex_) {
    if (!line_.up()) return;
    protocol::Submit submit;
    submit.sequence = entry.sequence;
    submit.command = wire::Sealed<Command>(entry.command);
    submit.quiet = entry.quiet;
    if (!entry.deadline.is_never()) submit.time_left = entry.deadline.remaining().count();
    LoanOffer offered;
    if (entry.loan != nullptr) {
      try {
        offered = options_.offer(*entry.loan);
      } catch (const Error& error) {
        commands_.refuse(entry, error.status());
        changed_.notify_all();
        return;
      }
      submit.loan = offered.bytes;
    }
    line_.send(std::move(submit), std::move(offered.fds));
  }

  template <typename Condition>
  void await(std::unique_lock<std::mutex>& lock, Deadline deadline, Condition condition)
      REQUIRES(mutex_) {
    Waiting waiting(lock, deadline);
    while (!condition()) {
      if (!deadline.expired() && listen(lock, deadline, condition)) continue;
      if (!waiting.sleep(changed_)) throw Error(Code::timeout, "the agent has not answered");
    }
  }

  // A caller that waits takes in what the agent says, for all callers: a thread between agent and
  // caller would cost two more wake-ups. The thread of this connection listens when no caller
  // waits. False: another thread listens, or there is no agent.
  template <typename Condition>
  bool listen(std::unique_lock<std::mutex>& lock, Deadline deadline, Condition condition)
      REQUIRES(mutex_) {
    if (listening_ || !line_.up()) return false;
    listening_ = true;
    try {
      while (line_.up() && !condition() && !deadline.expired()) {
        listen_awake(lock, condition);
        if (!line_.up() || condition()) continue;
        const std::shared_ptr<FrameSocket> socket = line_.socket();
        const int out = socket->wants_write() ? POLLOUT : 0;
        pollfd ready{socket->socket().get(), static_cast<short>(POLLIN | out), 0};
        {
          const Unlocked unlocked(lock);
          os::sleep_ready({&ready, 1}, deadline);
        }
        take_in(lock);
      }
    } catch (...) {
      stop_listening();
      throw;
    }
    stop_listening();
    return true;
  }

  // Others have the mutex now and then: what was true before need not be any more.
  template <typename Condition>
  void listen_awake(std::unique_lock<std::mutex>& lock, Condition condition) REQUIRES(mutex_) {
    thread_local os::Awake awake;
    const Unlocked unlocked(lock);
    // Unchecked: clang does not know that `lock` is one of mutex_, which `held` takes through it.
    awake.until([&]() LOCKS_UNCHECKED {
      const std::lock_guard held(lock);
      take_in(lock);
      return condition() || !line_.up();
    });
  }

  void stop_listening() noexcept REQUIRES(mutex_) {
    listening_ = false;
    if (line_.up() && thread_has_work()) line_.wake().signal();
  }

  bool thread_has_work() const noexcept REQUIRES(mutex_) {
    return !listening_ && (!commands_.empty() || !requests_.empty());
  }

  // The caller gives up. Returns if the command turns out to be accepted after all.
  void withdraw(std::unique_lock<std::mutex>& lock, const SubmittedPtr& entry, const Error& why)
      REQUIRES(mutex_) {
    const auto answered = [&] { return entry->state != Submitted::State::submitted; };
    if (line_.up()) {
      line_.send(protocol::Withdraw{entry->sequence});
      if (why.code() == Code::timeout) {
        try {
          await(lock, Deadline::after(withdraw_time), answered);
          return;
        } catch (const Error&) {
          if (answered()) return;
        }
      }
      entry->abandoned = true;
    } else {
      commands_.erase(entry->sequence);
    }
    if (why.code() == Code::interrupted || why.code() == Code::cancelled) throw why;
    lock.unlock();
    throw unreachable(agent_pid() > 0
                          ? fmt::format("process {} has accepted nothing in time", agent_pid())
                          : "it has ended");
  }

  template <typename Make>
  std::shared_ptr<Question> ask(Make make, Deadline deadline) {
    os::check_not_forked(made_in_, "client");
    Lock lock(mutex_);
    if (closed_) throw Error(Code::failed, "this client is closed");
    const std::uint64_t number = ++requests_made_;
    const auto request = std::make_shared<Question>();
    requests_[number] = request;
    if (!line_.up()) request->status = {Code::unreachable, "its agent has ended"};
    line_.send(make(number));
    try {
      await(lock, deadline, [&] { return request->answered || closed_ || !line_.up(); });
    } catch (const Error&) {
      requests_.erase(number);
      throw;
    }
    requests_.erase(number);
    if (!request->answered) {
      lock.unlock();
      throw unreachable("its process has ended");
    }
    return request;
  }

  void cancel(const Submitted& entry, const Status& reason) {
    const Lock lock(mutex_);
    if (commands_.contains(entry.sequence)) line_.send(protocol::Cancel{entry.sequence, reason});
  }

  bool listen(const PendingCommand& pending, const Submitted& entry, Deadline deadline) {
    if (made_in_ != os::fork_generation()) return false;
    Lock lock(mutex_);
    // The thread that has taken in the outcome completes the command next.
    const auto told = [&]() REQUIRES(mutex_) {
      return pending.done() || !commands_.contains(entry.sequence);
    };
    return !told() && listen(lock, deadline, told);
  }

  // --- the thread ---------------------------------------------------------------------------

  void run() {
    // A completed command may hold the last reference to this connection, and drop it right here.
    const std::shared_ptr<const bool> gone = gone_;
    while (!*gone) {
      std::shared_ptr<FrameSocket> socket;
      pollfd ready[] = {{-1, 0, 0}, {line_.wake().get(), POLLIN, 0}};
      {
        const Lock lock(mutex_);
        if (closed_) return;
        socket = line_.socket();
        if (socket != nullptr) {
          // The end of the agent is told in any case.
          const int in = thread_has_work() ? POLLIN : 0;
          const int out = socket->wants_write() ? POLLOUT : 0;
          ready[0] = {socket->socket().get(), static_cast<short>(in | out), 0};
        } else {
          line_.wake().drain();  // from here on only close() ends the greeting
        }
      }
      if (socket == nullptr) {
        come_back();
        continue;
      }
      ::poll(ready, 2, -1);
      if (ready[1].revents != 0) line_.wake().drain();
      Lock lock(mutex_);
      if (line_.socket() != socket) continue;
      const bool ended = (ready[0].revents & (POLLHUP | POLLERR)) != 0;
      if (!listening_ || ended) {
        take_in(lock);
      } else if (socket->wants_write()) {
        line_.flush();  // what comes in belongs to whoever listens
      }
    }
  }

  using Over = SubmittedCommands::Over;

  void take_in(std::unique_lock<std::mutex>& lock) REQUIRES(mutex_) {
    if (!line_.up()) return;
    Over over;
    line_.receive([&](protocol::FromAgent message)
                      REQUIRES(mutex_) { handle(std::move(message), over); });
    if (!line_.up() && !closed_) agent_ended(over);
    if (over.empty()) return;
    // What runs when these commands complete may submit again, which takes the mutex.
    lock.unlock();
    for (auto& [pending, outcome] : over) pending->complete(std::move(outcome));
    lock.lock();
  }

  void handle(protocol::FromAgent message, Over& over) REQUIRES(mutex_) {
    std::visit(
        Overloaded{
            [&](const protocol::Accepted& accepted) REQUIRES(mutex_) { take(accepted); },
            [&](const protocol::Refused& refused) REQUIRES(mutex_) {
              commands_.take(refused, over);
              changed_.notify_all();
            },
            [&](protocol::Done& done) REQUIRES(mutex_) { commands_.take(done, over); },
            [&](const protocol::Progress& progress) REQUIRES(mutex_) { commands_.take(progress); },
            [&](const protocol::Looked& looked)
                REQUIRES(mutex_) { answer(looked.request, looked.state, {}); },
            [&](const protocol::Guarded& guarded)
                REQUIRES(mutex_) { answer(guarded.request, {}, guarded.status); },
            [](const OneOf<protocol::Welcome, protocol::Rejected> auto&) {
              throw Error(Code::failed, "it greets twice");
            },
        },
        message);
  }

  void take(const protocol::Accepted& accepted) REQUIRES(mutex_) {
    const SubmittedPtr entry = commands_.find(accepted.sequence);
    if (entry == nullptr) return;
    entry->state = Submitted::State::accepted;
    if (entry->abandoned) {
      line_.send(protocol::Cancel{accepted.sequence, {Code::cancelled, "its caller has given up"}});
    }
    changed_.notify_all();
  }

  void answer(std::uint64_t number, const QueueState& queue, const Status& status)
      REQUIRES(mutex_) {
    const auto found = requests_.find(number);
    if (found == requests_.end()) return;
    found->second->queue = queue;
    found->second->status = status;
    found->second->answered = true;
    changed_.notify_all();
  }

  Outcome ended_with_agent(const Submitted& entry) const {
    return {.status = {Code::unreachable,
                       fmt::format("{}: agent {} (process {}) ended before it was over; what it "
                                   "has moved is not known. It can be tried again when the agent "
                                   "is back",
                                   describe(entry.command), options_.rank, agent_pid())}};
  }

  void agent_ended(Over& over) REQUIRES(mutex_) {
    log::warn("agent {} (process {}) has ended; waiting for another", options_.rank, agent_pid());
    // What the agent had no time to say is in its journal.
    end_accepted(last_accepted(options_.queue_path, session_).value_or(0), over);
    changed_.notify_all();
  }

  void end_accepted(std::uint64_t last, Over& over) REQUIRES(mutex_) {
    for (const SubmittedPtr& entry : commands_.take_accepted(last)) {
      over.emplace_back(entry->pending, ended_with_agent(*entry));
    }
  }

  void come_back() {
    Greeted agent;
    try {
      agent = greet_agent(options_, session_, line_.wake(), closed_, true, Deadline::never());
    } catch (const Error& error) {
      if (!closed_) log::warn("{}", error.what());
      return;
    }
    Over over;
    {
      const Lock lock(mutex_);
      if (closed_) return;
      start_again(std::move(agent), over);
      changed_.notify_all();
    }
    for (auto& [pending, outcome] : over) pending->complete(std::move(outcome));
  }

  // In one go: what another thread submits meanwhile would be sent twice.
  void start_again(Greeted agent, Over& over) REQUIRES(mutex_) {
    const protocol::Welcome welcome = agent.welcome;
    log::info("agent {} is back as process {}", options_.rank, welcome.pid);
    line_.adopt(std::move(agent));
    // The last agent had accepted some and could not say so.
    end_accepted(welcome.last_accepted, over);
    for (const SubmittedPtr& entry : commands_.start_again(welcome.last_accepted)) {
      const bool nobody_waits = entry->pending == nullptr;
      enter(entry);
      if (nobody_waits) log_failure(*entry->pending);
    }
  }

  void log_failure(PendingCommand& registration) const {
    registration.on_done([&registration, rank = options_.rank] {
      const Status& status = registration.wait(Deadline::never()).status;
      if (!status.ok()) log::error("agent {}: {}", rank, status.message);
    });
  }

  const SocketConnectionOptions options_;
  const std::uint64_t session_;
  const unsigned made_in_ = os::fork_generation();
  AgentLine line_{options_.rank};

  Mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> closed_{false};
  bool listening_ GUARDED_BY(mutex_) = false;  // a caller does, so that the thread need not
  SubmittedCommands commands_ GUARDED_BY(mutex_);
  std::uint64_t requests_made_ GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::shared_ptr<Question>> requests_ GUARDED_BY(mutex_);
  const std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);  // of the thread alone
  std::thread thread_;
};

}  // namespace

std::shared_ptr<Connection> connect_to_agent(SocketConnectionOptions options, Deadline deadline) {
  auto connection = std::make_shared<SocketConnection>(std::move(options), deadline);
  connection->start();
  return connection;
}

}  // namespace tensorbus::bus
