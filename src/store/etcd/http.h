// HTTP requests on threads of their own, so that a caller can leave at any moment.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/mutex.h"
#include "os/io/fd.h"
#include "store/common/call.h"

namespace tensorbus::store::etcd {

struct HttpRequest {
  StoreUrl::Host host;
  std::string path;
  std::string body;
  std::string token;  // of a login; empty without
};

struct HttpOutcome {
  bool sent = false;  // the server may have acted on it
  int status = 0;     // 0: no complete answer came
  std::string body;
  std::string cause;  // why no complete answer came
};

// Gets an answer that lasts, on the working thread.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // False ends the exchange.
  virtual bool receive(std::string_view bytes) = 0;
  // Exactly once, after the last bytes.
  virtual void end(const HttpOutcome& outcome) = 0;
};

// One POST, shared by the caller that waits for it and the thread that works on it.
class Exchange {
 public:
  // With a receiver, the body of a successful answer goes there and not into the outcome.
  explicit Exchange(HttpRequest request, std::shared_ptr<Receiver> receiver = nullptr);

  // False at the deadline; the exchange goes on.
  bool wait(const Call& call);
  // Only after wait() returned true.
  const HttpOutcome& outcome() const { return outcome_; }
  // Breaks the connection if the exchange has not ended, so that its thread comes free.
  void abandon() noexcept;

 private:
  friend class HttpConnection;
  friend class HttpPool;

  bool abandoned();
  void attach(std::shared_ptr<os::Fd> socket);
  void finish(HttpOutcome outcome);

  const HttpRequest request_;
  const std::shared_ptr<Receiver> receiver_;
  const unsigned generation_;
  Signal signal_;
  bool abandoned_ GUARDED_BY(signal_.mutex) = false;
  bool done_ GUARDED_BY(signal_.mutex) = false;
  std::shared_ptr<os::Fd> socket_ GUARDED_BY(signal_.mutex);
  HttpOutcome outcome_;  // never changes once done_
};

// Leaves no exchange behind, however its caller's scope ends.
class ExchangeGuard {
 public:
  explicit ExchangeGuard(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~ExchangeGuard() { exchange_->abandon(); }
  ExchangeGuard(const ExchangeGuard&) = delete;
  ExchangeGuard& operator=(const ExchangeGuard&) = delete;
  Exchange* operator->() const noexcept { return exchange_.get(); }

 private:
  std::shared_ptr<Exchange> exchange_;
};

// Threads with one kept connection each. Grows with the number of exchanges under way and keeps a
// few idle ones.
class HttpPool {
 public:
  HttpPool() = default;
  ~HttpPool() { stop(); }
  HttpPool(const HttpPool&) = delete;
  HttpPool& operator=(const HttpPool&) = delete;

  // Throws Error(cancelled) after stop().
  std::shared_ptr<Exchange> start(HttpRequest request,
                                  std::shared_ptr<Receiver> receiver = nullptr);
  // Abandons what is under way and joins every thread.
  void stop() noexcept;

 private:
  struct Worker {
    std::thread thread;
    std::shared_ptr<Exchange> current;  // what it works on
    std::shared_ptr<Exchange> next;     // what it was given
    StoreUrl::Host host;                // where its kept connection leads
    bool idle = false;
    bool gone = false;
  };

  void work(Worker& worker);
  void reap_gone() REQUIRES(mutex_);

  Mutex mutex_;
  std::condition_variable changed_;
  std::list<Worker> workers_ GUARDED_BY(mutex_);
  std::size_t idle_ GUARDED_BY(mutex_) = 0;
  bool stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace tensorbus::store::etcd
