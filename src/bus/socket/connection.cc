#include "bus/socket/connection.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/overloaded.h"
#include "base/secret.h"
#include "base/waiting.h"
#include "bus/channel/pending_command.h"
#include "bus/files/queue_journal.h"
#include "bus/socket/frame_socket.h"
#include "bus/socket/greeting.h"
#include "bus/socket/protocol.h"
#include "os/io/poll.h"
#include "os/process/fork.h"

namespace tensorbus::bus {
namespace {

// How long an agent may take to say whether it had accepted something that is withdrawn.
constexpr Duration withdraw_time = std::chrono::seconds(1);

// A submitted command until its outcome.
struct Submitted {
  enum class State : std::uint8_t { submitted, accepted, refused };

  Command command;
  std::shared_ptr<Loan> loan;
  Deadline deadline = Deadline::never();
  bool quiet = false;          // the agent says nothing before the outcome
  std::uint64_t sequence = 0;  // with the agent that there is now
  std::shared_ptr<PendingCommand> pending;
  State state = State::submitted;
  Status refusal;
  bool abandoned = false;  // nobody waits for its acceptance: cancel it then
  bool closed = false;  // a registration that was closed since: not made again with another agent
};

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
    Greeted agent = greet_agent(options_, session_, wake_, closed_, false, deadline);
    const std::lock_guard lock(mutex_);
    adopt(std::move(agent));
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
    std::unique_lock lock(mutex_);
    if (closed_) throw Error(Code::failed, "this client is closed");
    if (const auto* close = std::get_if<CloseBatch>(&command)) forget(close->registration);
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
    const std::lock_guard lock(mutex_);
    if (closed_) throw Error(Code::failed, "this client is closed");
    const auto entry = std::make_shared<Submitted>();
    entry->command = command;
    entry->deadline = deadline;
    entry->quiet = true;
    enter(entry);
    return entry->pending;
  }

  bool withdraw(Pending& pending) override {
    std::shared_ptr<Submitted> entry;
    try {
      std::unique_lock lock(mutex_);
      const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& each) {
        return each.second->pending.get() == &pending;
      });
      if (found == entries_.end() || found->second->state != Submitted::State::submitted)
        return true;
      entry = found->second;
      withdraw(lock, entry, Error(Code::timeout, "the agent has not answered"));
      return true;
    } catch (const Error& error) {
      entry->pending->complete({.status = error.status()});
      return false;
    }
  }

  std::shared_ptr<Pending> post(const Command& command) noexcept override {
    if (made_in_ != os::fork_generation()) return nullptr;
    const std::lock_guard lock(mutex_);
    if (closed_) return nullptr;
    if (const auto* close = std::get_if<CloseBatch>(&command)) forget(close->registration);
    const auto entry = std::make_shared<Submitted>();
    entry->command = command;
    enter(entry);
    if (socket_ != nullptr) wake_.signal();  // nobody waits for it
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
    const std::lock_guard lock(mutex_);
    send(protocol::ReleaseSemaphore{name});
  }

  std::int64_t agent_pid() const noexcept override { return agent_pid_.load(); }

  void close() noexcept override {
    if (made_in_ != os::fork_generation()) return;
    std::map<std::uint64_t, std::shared_ptr<Submitted>> orphans;
    {
      const std::lock_guard lock(mutex_);
      if (closed_.exchange(true)) return;
      send(protocol::Bye{});
      drop_socket();
      orphans.swap(entries_);
      registrations_.clear();
      for (const auto& [sequence, entry] : orphans) {
        if (entry->state != Submitted::State::submitted) continue;
        entry->state = Submitted::State::refused;
        entry->refusal = {Code::cancelled, "the client was closed"};
      }
      changed_.notify_all();
      wake_.signal();
    }
    for (const auto& [sequence, entry] : orphans) {
      entry->pending->complete({.status = {Code::cancelled, "the client was closed"}});
    }
  }

 private:
  // --- connecting ---------------------------------------------------------------------------

  // Under the mutex, as everything below.
  void adopt(Greeted agent) {
    agent_pid_ = agent.welcome.pid;
#ifdef PR_SET_PTRACER
    // Where Yama asks for it: this agent may read our memory. Elsewhere there is no such call.
    if (agent_pid_ > 0) ::prctl(PR_SET_PTRACER, agent_pid_.load(), 0, 0, 0);
#endif
    socket_ = std::move(agent.socket);
    os::close_in_children(socket_->socket().get());
  }

  void drop_socket() noexcept {
    if (socket_ == nullptr) return;
    os::forget_in_children(socket_->socket().get());
    // Whoever polls it wakes up, and holds it until then.
    ::shutdown(socket_->socket().get(), SHUT_RDWR);
    socket_.reset();
  }

  Error unreachable(const std::string& found) const { return unreachable_agent(options_, found); }

  // --- under the mutex ----------------------------------------------------------------------

  // For the first time, or with an agent that has come back.
  void enter(const std::shared_ptr<Submitted>& entry) {
    entry->sequence = ++sequence_;
    if (entry->pending == nullptr) entry->pending = make_pending(entry);
    entries_[entry->sequence] = entry;
    send_entry(entry->sequence, *entry);
  }

  std::shared_ptr<PendingCommand> make_pending(const std::shared_ptr<Submitted>& entry) {
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

  void send_entry(std::uint64_t sequence, Submitted& entry) {
    if (socket_ == nullptr) return;
    protocol::Submit submit;
    submit.sequence = sequence;
    submit.command = wire::Sealed<Command>(entry.command);
    submit.quiet = entry.quiet;
    if (!entry.deadline.is_never()) submit.time_left = entry.deadline.remaining().count();
    LoanOffer offered;
    if (entry.loan != nullptr) {
      try {
        offered = options_.offer(*entry.loan);
      } catch (const Error& error) {
        refuse(sequence, entry, error.status());
        return;
      }
      submit.loan = offered.bytes;
    }
    send(std::move(submit), std::move(offered.fds));
  }

  void refuse(std::uint64_t sequence, Submitted& entry, const Status& reason) {
    entry.state = Submitted::State::refused;
    entry.refusal = reason;
    entries_.erase(sequence);
    changed_.notify_all();
  }

  void send(const protocol::FromClient& message, std::vector<os::Fd> fds = {}) noexcept {
    if (socket_ == nullptr) return;
    try {
      socket_->send({protocol::encode(message), std::move(fds)});
      if (socket_->wants_write() || socket_->closed()) wake_.signal();
    } catch (const std::exception& error) {
      log::warn("agent {}: {}", options_.rank, error.what());
      drop_socket();
      wake_.signal();
    }
  }

  template <typename Condition>
  void await(std::unique_lock<std::mutex>& lock, Deadline deadline, Condition condition) {
    Waiting waiting(lock, deadline);
    while (!condition()) {
      if (!deadline.expired() && listen(lock, deadline, condition)) continue;
      if (!waiting.sleep(changed_)) throw Error(Code::timeout, "the agent has not answered");
    }
  }

  // Whoever waits takes in what the agent says, for all: a thread between them would be two more
  // that wake up. The thread of this connection does it when nobody waits. False: somebody else
  // does, or there is no agent.
  template <typename Condition>
  bool listen(std::unique_lock<std::mutex>& lock, Deadline deadline, Condition condition) {
    if (listening_ || socket_ == nullptr) return false;
    listening_ = true;
    try {
      while (socket_ != nullptr && !condition() && !deadline.expired()) {
        const std::shared_ptr<FrameSocket> socket = socket_;
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

  void stop_listening() noexcept {
    listening_ = false;
    if (socket_ != nullptr && thread_has_work()) wake_.signal();
  }

  bool thread_has_work() const noexcept {
    return !listening_ && (!entries_.empty() || !requests_.empty());
  }

  // The caller gives up. Returns if the command turns out to be accepted after all.
  void withdraw(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Submitted>& entry,
                const Error& why) {
    const auto answered = [&] { return entry->state != Submitted::State::submitted; };
    if (socket_ != nullptr) {
      send(protocol::Withdraw{entry->sequence});
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
      entries_.erase(entry->sequence);
    }
    if (why.code() == Code::interrupted) throw why;
    lock.unlock();
    throw unreachable(
        agent_pid_ > 0 ? fmt::format("process {} has accepted nothing in time", agent_pid_.load())
                       : "it has ended");
  }

  template <typename Make>
  std::shared_ptr<Question> ask(Make make, Deadline deadline) {
    os::check_not_forked(made_in_, "client");
    std::unique_lock lock(mutex_);
    if (closed_) throw Error(Code::failed, "this client is closed");
    const std::uint64_t number = ++requests_made_;
    const auto request = std::make_shared<Question>();
    requests_[number] = request;
    if (socket_ == nullptr) request->status = {Code::unreachable, "its agent has ended"};
    send(make(number));
    try {
      await(lock, deadline, [&] { return request->answered || closed_ || socket_ == nullptr; });
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
    const std::lock_guard lock(mutex_);
    if (entries_.contains(entry.sequence)) send(protocol::Cancel{entry.sequence, reason});
  }

  bool listen(const PendingCommand& pending, const Submitted& entry, Deadline deadline) {
    if (made_in_ != os::fork_generation()) return false;
    std::unique_lock lock(mutex_);
    // Whoever has taken in its outcome completes it next.
    const auto told = [&] { return pending.done() || !entries_.contains(entry.sequence); };
    return !told() && listen(lock, deadline, told);
  }

  // --- the thread ---------------------------------------------------------------------------

  void run() {
    // A completed command may hold the last reference to this connection, and drop it right here.
    const std::shared_ptr<const bool> gone = gone_;
    while (!*gone) {
      std::shared_ptr<FrameSocket> socket;
      pollfd ready[] = {{-1, 0, 0}, {wake_.get(), POLLIN, 0}};
      {
        const std::lock_guard lock(mutex_);
        if (closed_) return;
        socket = socket_;
        if (socket != nullptr) {
          // The end of the agent is told in any case.
          const int in = thread_has_work() ? POLLIN : 0;
          const int out = socket->wants_write() ? POLLOUT : 0;
          ready[0] = {socket->socket().get(), static_cast<short>(in | out), 0};
        } else {
          wake_.drain();  // from here on only close() ends the greeting
        }
      }
      if (socket == nullptr) {
        come_back();
        continue;
      }
      ::poll(ready, 2, -1);
      if (ready[1].revents != 0) wake_.drain();
      std::unique_lock lock(mutex_);
      if (socket_ != socket) continue;
      const bool ended = (ready[0].revents & (POLLHUP | POLLERR)) != 0;
      if (!listening_ || ended) {
        take_in(lock);
      } else if (socket->wants_write()) {
        flush();  // what comes in belongs to whoever listens
      }
    }
  }

  void flush() noexcept {
    try {
      socket_->flush();
    } catch (const std::exception& error) {
      log::warn("agent {}: {}", options_.rank, error.what());
      drop_socket();
    }
  }

  using Over = std::vector<std::pair<std::shared_ptr<PendingCommand>, Outcome>>;

  void take_in(std::unique_lock<std::mutex>& lock) {
    if (socket_ == nullptr) return;
    Over over;
    try {
      socket_->flush();
      while (std::optional<Frame> frame = socket_->receive()) {
        handle(protocol::decode_from_agent(frame->bytes), over);
      }
    } catch (const std::exception& error) {
      log::warn("agent {} is left: {}", options_.rank, error.what());
      drop_socket();
    }
    if (socket_ != nullptr && socket_->closed()) drop_socket();
    if (socket_ == nullptr && !closed_) agent_ended(over);
    if (over.empty()) return;
    // Their calls may submit again.
    lock.unlock();
    for (auto& [pending, outcome] : over) pending->complete(std::move(outcome));
    lock.lock();
  }

  void handle(protocol::FromAgent message, Over& over) {
    std::visit(
        Overloaded{
            [&](const protocol::Accepted& accepted) { take(accepted); },
            [&](const protocol::Refused& refused) { take(refused, over); },
            [&](protocol::Done& done) { take(done, over); },
            [&](const protocol::Progress& progress) { take(progress); },
            [&](const protocol::Looked& looked) { answer(looked.request, looked.state, {}); },
            [&](const protocol::Guarded& guarded) { answer(guarded.request, {}, guarded.status); },
            [](const OneOf<protocol::Welcome, protocol::Rejected> auto&) {
              throw Error(Code::failed, "it greets twice");
            },
        },
        message);
  }

  void take(const protocol::Accepted& accepted) {
    const auto found = entries_.find(accepted.sequence);
    if (found == entries_.end()) return;
    found->second->state = Submitted::State::accepted;
    if (found->second->abandoned) {
      send(protocol::Cancel{accepted.sequence, {Code::cancelled, "its caller has given up"}});
    }
    changed_.notify_all();
  }

  void take(const protocol::Refused& refused, Over& over) {
    const auto found = entries_.find(refused.sequence);
    if (found == entries_.end()) return;
    const std::shared_ptr<Submitted> entry = found->second;
    refuse(refused.sequence, *entry, refused.reason);
    over.emplace_back(entry->pending, Outcome{.status = refused.reason});
  }

  void take(protocol::Done& done, Over& over) {
    const auto found = entries_.find(done.sequence);
    if (found == entries_.end()) return;
    found->second->state = Submitted::State::accepted;
    remember(*found->second, done.outcome);
    over.emplace_back(found->second->pending, std::move(done.outcome));
    entries_.erase(found);
  }

  void take(const protocol::Progress& progress) {
    const auto found = entries_.find(progress.sequence);
    if (found != entries_.end()) found->second->pending->progress(progress.done, progress.total);
  }

  void answer(std::uint64_t number, const QueueState& queue, const Status& status) {
    const auto found = requests_.find(number);
    if (found == requests_.end()) return;
    found->second->queue = queue;
    found->second->status = status;
    found->second->answered = true;
    changed_.notify_all();
  }

  // Registrations are made again with an agent that replaces this one.
  void remember(const Submitted& entry, const Outcome& outcome) {
    const auto* batch = std::get_if<RegisterBatch>(&entry.command);
    if (batch == nullptr || !outcome.status.ok() || entry.closed) return;
    registrations_[batch->registration] = {entry.command, entry.loan};
  }

  // Also one that is just being made again with an agent that has come back.
  void forget(std::uint64_t registration) {
    registrations_.erase(registration);
    for (const auto& [sequence, entry] : entries_) {
      const auto* batch = std::get_if<RegisterBatch>(&entry->command);
      if (batch != nullptr && batch->registration == registration) entry->closed = true;
    }
  }

  Outcome ended_with_agent(const Submitted& entry) const {
    return {.status = {Code::unreachable,
                       fmt::format("{}: agent {} (process {}) ended before it was over; what it "
                                   "has moved is not known. It can be tried again when the agent "
                                   "is back",
                                   describe(entry.command), options_.rank, agent_pid_.load())}};
  }

  void agent_ended(Over& over) {
    log::warn("agent {} (process {}) has ended; waiting for another", options_.rank,
              agent_pid_.load());
    // What it had no time to say is in its journal.
    const std::uint64_t accepted = last_accepted(options_.queue_path, session_).value_or(0);
    for (auto at = entries_.begin(); at != entries_.end();) {
      if (at->second->state != Submitted::State::accepted && at->first > accepted) {
        ++at;
        continue;
      }
      at->second->state = Submitted::State::accepted;
      over.emplace_back(at->second->pending, ended_with_agent(*at->second));
      at = entries_.erase(at);
    }
    changed_.notify_all();
  }

  void come_back() {
    Greeted agent;
    try {
      agent = greet_agent(options_, session_, wake_, closed_, true, Deadline::never());
    } catch (const Error& error) {
      if (!closed_) log::warn("{}", error.what());
      return;
    }
    Over over;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      const protocol::Welcome welcome = agent.welcome;
      log::info("agent {} is back as process {}", options_.rank, welcome.pid);
      // In one go: what another thread submits meanwhile would be sent twice.
      adopt(std::move(agent));
      std::map<std::uint64_t, std::shared_ptr<Submitted>> unanswered;
      unanswered.swap(entries_);
      sequence_ = std::max(sequence_, welcome.last_accepted);
      for (const auto& [number, registration] : registrations_) {
        const auto entry = std::make_shared<Submitted>();
        entry->command = registration.command;
        entry->loan = registration.loan;
        enter(entry);
        entry->pending->on_done([pending = entry->pending.get(), rank = options_.rank] {
          const Status& status = pending->wait(Deadline::never()).status;
          if (!status.ok()) log::error("agent {}: {}", rank, status.message);
        });
      }
      for (const auto& [sequence, entry] : unanswered) {
        if (sequence <= welcome.last_accepted) {
          // The last agent had accepted it and could not say so.
          entry->state = Submitted::State::accepted;
          over.emplace_back(entry->pending, ended_with_agent(*entry));
        } else if (!entry->abandoned) {
          enter(entry);
        }
      }
      changed_.notify_all();
    }
    for (auto& [pending, outcome] : over) pending->complete(std::move(outcome));
  }

  struct Registration {
    Command command;
    std::shared_ptr<Loan> loan;
  };

  const SocketConnectionOptions options_;
  const std::uint64_t session_;
  const unsigned made_in_ = os::fork_generation();
  std::atomic<std::int64_t> agent_pid_{0};
  os::EventFd wake_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> closed_{false};
  std::shared_ptr<FrameSocket> socket_;
  bool listening_ = false;  // a caller does, so that the thread need not
  std::uint64_t sequence_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Submitted>> entries_;
  std::map<std::uint64_t, Registration> registrations_;
  std::uint64_t requests_made_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Question>> requests_;
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
