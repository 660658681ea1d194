#include "store/etcd/http.h"

#include <httplib.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "os/process/fork.h"
#include "os/process/process.h"

namespace tensorbus::store::etcd {
namespace {

constexpr std::size_t max_idle_threads = 4;
// A name may have several addresses; a silent one must not use up the whole deadline.
constexpr std::chrono::seconds connect_limit{3};
// Callers keep their own deadlines and abandon the exchange; this limit only has to be longer.
constexpr std::chrono::seconds read_limit{1'000'000};

std::string describe(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
      return "no connection (nothing listens there, or the name is unknown)";
    case httplib::Error::ConnectionTimeout:
      return "no connection within 3 s";
    case httplib::Error::Read:
      return "the connection broke before the answer was complete";
    case httplib::Error::Write:
      return "the connection broke while the request was sent";
    case httplib::Error::Canceled:
      return "given up";
    default:
      return "HTTP failure: " + httplib::to_string(error);
  }
}

void set_option(int socket, int level, int name, int value) {
  // Best effort: without the option the connection works, only its loss is noticed later.
  [[maybe_unused]] const int result = ::setsockopt(socket, level, name, &value, sizeof value);
}

// A connection that was cut without a word is noticed after 6 s, also by a watch that only listens.
void prepare(int socket) {
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

}  // namespace

// A kept connection to one host; used by one thread.
class HttpConnection {
 public:
  explicit HttpConnection(const StoreUrl::Host& host) : host_(host), client_(host.name, host.port) {
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);
    client_.set_connection_timeout(connect_limit);
    client_.set_read_timeout(read_limit);
    client_.set_write_timeout(read_limit);
    client_.set_socket_options([this](int socket) {
      prepare(socket);
      // A duplicate, because the library closes its own descriptor without telling, and a number
      // that was used again would be shut down in its place.
      try {
        socket_ = std::make_shared<os::Fd>(os::duplicate(socket));
        exchange_->attach(socket_);
      } catch (const std::exception& error) {
        // The library would not close its own. Without a duplicate nothing is sent: an exchange
        // that nobody can break would keep its thread for as long as the server is silent.
        lacking_ = error.what();
      }
    });
  }

  const StoreUrl::Host& host() const noexcept { return host_; }
  bool usable() const noexcept { return usable_; }

  HttpOutcome post(Exchange& exchange) {
    exchange_ = &exchange;
    if (socket_) exchange.attach(socket_);
    HttpOutcome outcome;
    httplib::Response response;
    auto error = httplib::Error::Success;
    httplib::Request request = make_request(exchange, outcome, response);
    usable_ = false;
    usable_ = client_.send(request, response, error);
    // etcd's errors end with a trailer, which this library takes for a broken answer although it
    // has read all of it.
    const bool whole_error =
        !usable_ && response.status >= 400 && nlohmann::json::accept(outcome.body);
    if (usable_ || whole_error) {
      outcome.status = response.status;
    } else if (!lacking_.empty()) {
      outcome.cause = lacking_;
    } else {
      outcome.cause = describe(error);
    }
    exchange_ = nullptr;
    return outcome;
  }

 private:
  httplib::Request make_request(Exchange& exchange, HttpOutcome& outcome,
                                const httplib::Response& response) const {
    const HttpRequest& wanted = exchange.request_;
    httplib::Request request;
    request.method = "POST";
    request.path = wanted.path;
    request.set_header("Content-Type", "application/json");
    if (!wanted.token.empty()) request.set_header("Authorization", wanted.token);
    // Not request.body: the provider runs after the connection stands. A caller that abandons
    // earlier is seen here, a caller that abandons later finds a connected socket to shut down.
    request.content_length_ = wanted.body.size();
    request.content_provider_ = [&](std::size_t at, std::size_t size, httplib::DataSink& sink) {
      if (exchange.abandoned() || !lacking_.empty()) return false;
      outcome.sent = true;
      return sink.write(wanted.body.data() + at, size);
    };
    request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t,
                                   std::uint64_t) {
      if (exchange.abandoned()) return false;
      if (exchange.receiver_ && response.status == 200)
        return exchange.receiver_->receive({data, size});
      outcome.body.append(data, size);
      return true;
    };
    return request;
  }

  const StoreUrl::Host host_;
  httplib::Client client_;
  std::shared_ptr<os::Fd> socket_;
  std::string lacking_;  // why there is no duplicate; the connection is not used again
  Exchange* exchange_ = nullptr;
  bool usable_ = true;
};

Exchange::Exchange(HttpRequest request, std::shared_ptr<Receiver> receiver)
    : request_(std::move(request)),
      receiver_(std::move(receiver)),
      generation_(os::fork_generation()) {}

bool Exchange::wait(const Call& call) {
  return signal_.wait(call, [this]() REQUIRES(signal_.mutex) { return done_; });
}

void Exchange::abandon() noexcept {
  const Lock lock(signal_.mutex);
  abandoned_ = true;
  // A forked child shares the connection with its parent, who still uses it.
  if (os::fork_generation() != generation_) return;
  if (socket_) ::shutdown(socket_->get(), SHUT_RDWR);
}

bool Exchange::abandoned() {
  const Lock lock(signal_.mutex);
  return abandoned_;
}

void Exchange::attach(std::shared_ptr<os::Fd> socket) {
  const Lock lock(signal_.mutex);
  socket_ = std::move(socket);
}

void Exchange::finish(HttpOutcome outcome) {
  if (receiver_) receiver_->end(outcome);
  signal_.notify([&]() REQUIRES(signal_.mutex) {
    outcome_ = std::move(outcome);
    done_ = true;
    socket_.reset();
  });
}

std::shared_ptr<Exchange> HttpPool::start(HttpRequest request, std::shared_ptr<Receiver> receiver) {
  auto exchange = std::make_shared<Exchange>(std::move(request), std::move(receiver));
  const Lock lock(mutex_);
  if (stopped_) throw Error(Code::cancelled, "the store was closed");
  reap_gone();
  Worker* chosen = nullptr;
  for (Worker& worker : workers_) {
    if (!worker.idle) continue;
    chosen = &worker;
    if (worker.host == exchange->request_.host) break;
  }
  if (chosen != nullptr) {
    chosen->idle = false;
    --idle_;
    chosen->next = exchange;
    changed_.notify_all();
    return exchange;
  }
  Worker& added = workers_.emplace_back();
  added.next = exchange;
  added.thread = std::thread([this, &added] { work(added); });
  return exchange;
}

void HttpPool::work(Worker& worker) {
  // Also because the HTTP library writes without MSG_NOSIGNAL.
  os::block_signals_in_this_thread();
  std::optional<HttpConnection> connection;
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&]() REQUIRES(mutex_) { return stopped_ || worker.next; });
    worker.current = std::move(worker.next);
    if (!worker.current) return;
    Exchange& exchange = *worker.current;
    if (stopped_) exchange.abandon();
    lock.unlock();
    if (!connection || connection->host() != exchange.request_.host) {
      connection.emplace(exchange.request_.host);
    }
    HttpOutcome outcome{false, 0, {}, "given up"};
    try {
      if (!exchange.abandoned()) outcome = connection->post(exchange);
    } catch (const std::exception& error) {
      outcome = {true, 0, {}, error.what()};
    }
    if (!connection->usable()) connection.reset();
    lock.lock();
    // The thread is idle before its caller wakes, so that the caller's next request finds this
    // thread.
    const auto finished = std::exchange(worker.current, nullptr);
    const bool leave = stopped_ || idle_ >= max_idle_threads;
    worker.host = finished->request_.host;
    if (leave) {
      worker.gone = true;
    } else {
      worker.idle = true;
      ++idle_;
    }
    finished->finish(std::move(outcome));
    if (leave) return;
  }
}

void HttpPool::reap_gone() {
  for (auto worker = workers_.begin(); worker != workers_.end();) {
    if (worker->gone) {
      worker->thread.join();
      worker = workers_.erase(worker);
    } else {
      ++worker;
    }
  }
}

void HttpPool::stop() noexcept {
  std::list<Worker> ending;  // whose threads refer to them still
  {
    const Lock lock(mutex_);
    stopped_ = true;
    for (Worker& worker : workers_) {
      if (worker.current) worker.current->abandon();
    }
    ending.swap(workers_);
    changed_.notify_all();
  }
  for (Worker& worker : ending) worker.thread.join();
}

}  // namespace tensorbus::store::etcd
