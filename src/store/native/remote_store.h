// tensorbus://: the client of our server.
//
// No thread of its own: of all the threads blocked in a call one leads, reading the socket and
// handing replies to the others; when the leader has its own reply it passes the lead on. So a lone
// caller talks to the server directly, without a wake-up in between. The leader also reconnects,
// and then repeats whatever has no reply yet.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "os/io/poll.h"
#include "os/process/unshared_fd.h"
#include "store/native/request_store.h"

namespace tensorbus::store {

class RemoteStore final : public RequestStore {
 public:
  // Connects; throws if the server cannot be reached by the deadline, or refuses us.
  RemoteStore(StoreUrl::Host host, const ConnectOptions& options);
  // Takes a connection on which hands were shaken for `session`.
  RemoteStore(StoreUrl::Host host, const ConnectOptions& options, const Id16& session,
              os::Fd socket, const Hello& server);
  ~RemoteStore() override;

  std::string url() const override;
  std::unique_ptr<Watch> watch(const std::string& prefix, bool current, Deadline deadline) override;
  bool server_ended_here() const noexcept override { return server_ended_here_; }
  void close(bool cleanup) noexcept override;

 private:
  class WatchHandle;
  class Reading;
  // A thread that waits for something. Made before the mutex is locked and destroyed after: whoever
  // cancels holds the cancellation's lock and then takes ours.
  struct Waiter {
    Waiter(RemoteStore& store, Cancellation* cancelled_by);
    std::condition_variable wake;
    Cancellation* cancellation;
    Cancellation::Hook hook;
  };
  struct Call {
    Waiter* waiter = nullptr;
    Op op{};
    std::string frame;
    bool done = false;
    Status status;
    std::string reply;
  };
  struct WatchState {
    std::uint64_t id = 0;
    std::string prefix;
    bool wants_current = false;
    bool started = false;  // the server has taken it at least once
    bool closed = false;
    Status failure;
    std::uint64_t revision = 0;  // of the last change it knows; 0: this server's say nothing to it
    // Fingerprints of values by wire key: what the watcher was told, or could have asked for.
    std::map<std::string, std::uint64_t, std::less<>> known;
    std::deque<StoreEvent> events;
    Waiter* reader = nullptr;
  };

  std::string call(Op op, const std::string& body, Deadline deadline,
                   Cancellation* cancellation) override;
  // Until `finished` holds. True, or false at the deadline. Throws on close, cancel and Ctrl-C.
  bool wait_until(std::unique_lock<std::mutex>& lock, Waiter& self, Deadline deadline,
                  const std::function<bool()>& finished) REQUIRES(mutex_);
  void lead(std::unique_lock<std::mutex>& lock, Deadline deadline) REQUIRES(mutex_);
  void pass_the_lead() REQUIRES(mutex_);
  void step_back() REQUIRES(mutex_);
  void check_usable() const REQUIRES(mutex_);
  std::uint64_t settled(Op op) const REQUIRES(mutex_);

  void connect(std::unique_lock<std::mutex>& lock, Deadline deadline) REQUIRES(mutex_);
  void attach(std::unique_lock<std::mutex>& lock, os::Fd socket, const Hello& server)
      REQUIRES(mutex_);
  void disconnect(const std::string& reason) REQUIRES(mutex_);
  void fail_all(const Status& status) REQUIRES(mutex_);
  void fail_hopeless(const Status& status) REQUIRES(mutex_);
  void send(std::string_view frame) REQUIRES(mutex_);
  void send_watch(WatchState& watch) REQUIRES(mutex_);
  void send_cancel(std::uint64_t id) REQUIRES(mutex_);
  void flush() REQUIRES(mutex_);
  void receive() REQUIRES(mutex_);
  void dispatch(std::string_view frame) REQUIRES(mutex_);
  void synchronise(WatchState& watch, Decoder reply) REQUIRES(mutex_);
  void take_event(WatchState& watch, std::string_view body) REQUIRES(mutex_);

  const StoreUrl::Host host_;
  const std::optional<std::string> token_;
  const Id16 session_;

  os::EventFd wake_leader_;
  os::EventFd abort_;
  std::atomic<bool> server_ended_here_{false};

  Mutex mutex_;
  os::UnsharedFd socket_ GUARDED_BY(mutex_);
  std::optional<Id16> instance_ GUARDED_BY(mutex_);  // of the last server we talked to
  bool connected_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
  bool led_ GUARDED_BY(mutex_) = false;
  Duration pause_
      GUARDED_BY(mutex_){};  // before the next attempt to connect; 0 if the last one did not fail
  std::string last_failure_ GUARDED_BY(mutex_) = "there was no time to try";
  Status refusal_ GUARDED_BY(mutex_);  // why connecting again is hopeless
  std::string in_ GUARDED_BY(mutex_);
  std::string out_ GUARDED_BY(mutex_);
  std::uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  std::map<std::uint64_t, Call*> calls_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::shared_ptr<WatchState>> watches_ GUARDED_BY(mutex_);
  std::list<Waiter*> waiters_ GUARDED_BY(mutex_);
};

}  // namespace tensorbus::store
