// The server's one thread: accepts, reads, lets the service work, writes the journal, then answers.
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/waiting.h"
#include "os/io/poll.h"
#include "os/net/tcp.h"
#include "os/process/fork.h"
#include "os/process/process.h"
#include "store/server/acceptor.h"
#include "store/server/service.h"

namespace tensorbus {
namespace {

using store::Connection;
using store::Service;

constexpr std::uint64_t listener_number = 0;
constexpr std::uint64_t wake_number = 1;
constexpr std::uint64_t first_connection_number = 2;
// How long stop() keeps sending to clients that read slowly.
constexpr auto drain_time = std::chrono::seconds(1);
constexpr Duration longest_wait = std::chrono::minutes(1);
// Leases are looked after so often: what is slept through in one wait is given back to them.
constexpr Duration longest_wait_with_leases = std::chrono::seconds(1);

}  // namespace

class StoreServer::Impl {
 public:
  explicit Impl(const StoreServerOptions& options)
      : host_(options.host),
        greeting_time_(options.greeting_time),
        on_failure_(options.on_failure),
        acceptor_(options.host, options.port),
        service_(options),
        epoll_(os::Fd(::epoll_create1(EPOLL_CLOEXEC))) {
    if (!epoll_) os::throw_errno("epoll_create1");
    watch(acceptor_.get(), listener_number, EPOLLIN, EPOLL_CTL_ADD);
    watch(wake_.get(), wake_number, EPOLLIN, EPOLL_CTL_ADD);
    thread_ = std::thread([this] {
      os::block_signals_in_this_thread();
      run();
    });
  }

  ~Impl() { stop(); }

  std::uint16_t port() const noexcept { return acceptor_.port(); }
  std::string url() const { return "tensorbus://" + os::host_port(host_, port()); }

  StoreServerStats stats() const {
    StoreServerStats stats;
    store::ServiceCounters& counters = service_.counters();
    const auto microseconds = [&](double share) {
      return std::chrono::duration<double, std::micro>(counters.request_time.quantile(share))
          .count();
    };
    stats.connections = open_.value();
    stats.accepted = accepted_.value();
    stats.requests = counters.requests.value();
    stats.refused = counters.refused.value();
    stats.keys = counters.keys.value();
    stats.waits = counters.waits.value();
    stats.revision = counters.revision.value();
    stats.request_p50_us = microseconds(0.5);
    stats.request_p99_us = microseconds(0.99);
    return stats;
  }

  void wait_for_workers(std::size_t count, Deadline deadline) {
    Lock lock(workers_mutex_);
    const auto joined = [&]() REQUIRES(workers_mutex_) {
      if (workers_ >= static_cast<std::int64_t>(count)) return true;
      if (failed_) throw Error(Code::failed, "the store server has failed; see its log");
      return false;
    };
    if (wait(lock, workers_changed_, deadline, joined)) return;
    throw Error(Code::timeout, fmt::format("{} of {} workers joined the store at {} in time",
                                           workers_, count, url()));
  }

  void stop() noexcept {
    if (!thread_.joinable()) return;
    if (os::fork_generation() != generation_) {
      // A forked child has the object but not the thread.
      thread_.detach();
      return;
    }
    stopping_ = true;
    wake_.signal();
    thread_.join();
  }

 private:
  bool try_watch(int fd, std::uint64_t number, std::uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = number;
    return ::epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
  }

  void watch(int fd, std::uint64_t number, std::uint32_t events, int operation) {
    if (!try_watch(fd, number, events, operation)) os::throw_errno("epoll_ctl");
  }

  void run() {
    try {
      while (!stopping_) turn();
      drain();
    } catch (const std::exception& error) {
      log::error("the store server stops: {}", error.what());
      failed_ = true;
      if (on_failure_) on_failure_(current_exception_status());
    }
    connections_.clear();
    open_.set(0);
    acceptor_.close();
    service_.release_journal();
    const Lock lock(workers_mutex_);
    workers_changed_.notify_all();
  }

  void turn() {
    service_.look_at_clock(Duration::zero());
    // Only leases that had lapsed before the server began to read lapse in this turn: a renewal
    // that lies in a socket by then is read first.
    const TimePoint lapsed_by = service_.lease_time();
    const auto wait = time_to_next_timer();
    // Room for everybody, so that one turn reads all that is there.
    events_.resize(connections_.size() + first_connection_number);
    const int count = ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()),
                                   static_cast<int>(wait.count()));
    if (count < 0 && errno != EINTR) os::throw_errno("epoll_wait");
    service_.look_at_clock(wait);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events_[static_cast<std::size_t>(i)];
      if (event.data.u64 == listener_number) {
        accept_all();
      } else if (event.data.u64 == wake_number) {
        wake_.drain();
      } else if (const auto found = connections_.find(event.data.u64);
                 found != connections_.end()) {
        handle(*found->second, event.events);
      }
    }
    finish_turn();
    // Housekeeping after the answers: a client that waits for an answer is waiting now.
    const TimePoint time = now();
    service_.tick(time, lapsed_by);
    drop_silent(time);
    resume_accepting(time);
    finish_turn();
  }

  // Log, then answer: what a client was told is never lost.
  void finish_turn() {
    // A client that leaves can end the wait of another.
    do {
      while (Connection* resumed = service_.take_resumed()) service_.serve(*resumed);
      service_.commit();
      for (Connection* connection : service_.take_dirty()) flush(*connection);
      while (Connection* old = service_.take_replaced()) drop(*old);
    } while (service_.has_work());
    publish_workers();
  }

  void flush(Connection& connection) {
    if (!connection.flush() || (connection.closing && !connection.has_output())) {
      drop(connection);
      return;
    }
    // The server does not listen to a client that does not read what it asked for, or broke a rule.
    const bool listens = !connection.closing && !connection.congested();
    const std::uint32_t interest =
        (listens ? EPOLLIN : 0U) | (connection.has_output() ? EPOLLOUT : 0U);
    if (interest != connection.interest) {
      connection.interest = interest;
      watch(connection.socket.get(), connection.number, interest, EPOLL_CTL_MOD);
    }
    if (connection.has_work() && !connection.torch_wait) service_.resume(connection);
  }

  void handle(Connection& connection, std::uint32_t events) {
    const bool gone = (events & (EPOLLHUP | EPOLLERR)) != 0;
    if ((events & EPOLLIN) != 0 || gone) {
      const bool listens = (connection.interest & EPOLLIN) != 0;
      if (listens ? !connection.receive() : gone) {
        drop(connection);
        return;
      }
      service_.serve(connection);
    }
    if ((events & EPOLLOUT) != 0) flush(connection);
  }

  void accept_all() {
    while (os::Fd socket = acceptor_.next()) add(std::move(socket));
    // The listener stays ready while the acceptor rests: the loop would spin.
    if (acceptor_.rests()) watch(acceptor_.get(), listener_number, 0, EPOLL_CTL_MOD);
  }

  void resume_accepting(TimePoint time) {
    if (!acceptor_.rest_is_over(time)) return;
    watch(acceptor_.get(), listener_number, EPOLLIN, EPOLL_CTL_MOD);
  }

  void add(os::Fd socket) {
    os::tune_stream(socket);
    auto connection = std::make_unique<Connection>();
    connection->number = next_number_++;
    connection->accepted = now();
    connection->socket = os::UnsharedFd(std::move(socket));
    connection->interest = EPOLLIN;
    if (!try_watch(connection->socket.get(), connection->number, EPOLLIN, EPOLL_CTL_ADD)) {
      return acceptor_.rest(errno);
    }
    acceptor_.welcomed();
    greeting_.push_back(connection->number);
    connections_.emplace(connection->number, std::move(connection));
    accepted_.add();
    open_.set(connections_.size());
  }

  void drop(Connection& connection) {
    service_.forget(connection);
    connections_.erase(connection.number);
    open_.set(connections_.size());
  }

  void drop_silent(TimePoint time) {
    while (!greeting_.empty()) {
      const auto found = connections_.find(greeting_.front());
      if (found != connections_.end()) {
        Connection& connection = *found->second;
        const bool introduced = connection.state == Connection::State::native ||
                                connection.state == Connection::State::torch;
        if (!introduced && time - connection.accepted < greeting_time_) return;
        if (!introduced) {
          log::warn("connection {} is closed: it has not introduced itself", connection.number);
          drop(connection);
        }
      }
      greeting_.pop_front();
    }
  }

  std::chrono::milliseconds time_to_next_timer() const {
    if (service_.has_resumed()) return {};
    const TimePoint time = now();
    Duration left = longest_wait;
    if (const auto lapses = service_.next_lapse()) {
      left = std::min(longest_wait_with_leases, *lapses);
    }
    if (acceptor_.rests()) left = std::min(left, acceptor_.rests_until() - time);
    if (!greeting_.empty()) {
      const auto found = connections_.find(greeting_.front());
      if (found == connections_.end()) return {};
      left = std::min(left, found->second->accepted + greeting_time_ - time);
    }
    return std::chrono::ceil<std::chrono::milliseconds>(std::max(left, Duration::zero()));
  }

  void publish_workers() {
    const std::int64_t workers = service_.workers();
    if (workers == workers_seen_) return;
    workers_seen_ = workers;
    const Lock lock(workers_mutex_);
    workers_ = workers;
    workers_changed_.notify_all();
  }

  void drain() {
    acceptor_.close();
    // What has arrived is still served: closing on unread requests would reset the connection, and
    // with it the answers that are on their way.
    for (auto& [_, connection] : connections_) {
      if (connection->receive()) service_.serve(*connection);
      service_.say_farewell(*connection);
    }
    service_.commit();
    const Deadline deadline = Deadline::after(drain_time);
    for (auto& [_, connection] : connections_) {
      while (connection->has_output() && connection->flush() && connection->has_output()) {
        pollfd writable{connection->socket.get(), POLLOUT, 0};
        if (!os::wait_ready({&writable, 1}, deadline)) break;
      }
    }
  }

  const unsigned generation_ = os::fork_generation();
  const std::string host_;
  const Duration greeting_time_;
  const std::function<void(const Status&)> on_failure_;
  store::Acceptor acceptor_;
  mutable Service service_;
  os::UnsharedFd epoll_;
  os::EventFd wake_;
  std::vector<epoll_event> events_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::deque<std::uint64_t> greeting_;
  std::uint64_t next_number_ = first_connection_number;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  observe::Counter open_;
  observe::Counter accepted_;

  Mutex workers_mutex_;
  std::condition_variable workers_changed_;
  std::int64_t workers_ GUARDED_BY(workers_mutex_) = 0;
  std::int64_t workers_seen_ = 0;  // of the thread

  std::thread thread_;
};

StoreServer::StoreServer(const StoreServerOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
StoreServer::~StoreServer() = default;
std::uint16_t StoreServer::port() const noexcept { return impl_->port(); }
std::string StoreServer::url() const { return impl_->url(); }
StoreServerStats StoreServer::stats() const { return impl_->stats(); }
void StoreServer::wait_for_workers(std::size_t count, Deadline deadline) {
  impl_->wait_for_workers(count, deadline);
}
void StoreServer::stop() noexcept { impl_->stop(); }

}  // namespace tensorbus
