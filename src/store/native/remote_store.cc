#include "store/native/remote_store.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "base/log.h"
#include "base/waiting.h"
#include "os/net/tcp.h"
#include "store/common/limits.h"
#include "store/protocol/handshake.h"

namespace tensorbus::store {
namespace {

constexpr auto first_pause = std::chrono::milliseconds(10);
constexpr auto longest_pause = std::chrono::milliseconds(500);
// One attempt to connect; a server that is up answers at once.
constexpr auto attempt_time = std::chrono::seconds(5);
// After a blocked call's deadline: how long we wait to be told what was missing.
constexpr auto farewell_time = std::chrono::milliseconds(500);
constexpr std::size_t most_received = 64 * 1024;

Error closed_error() { return Error(Code::cancelled, "the store was closed"); }

}  // namespace

RemoteStore::Waiter::Waiter(RemoteStore& store, Cancellation* cancelled_by)
    : cancellation(cancelled_by), hook(cancelled_by, [&store, this] {
        const Lock lock(store.mutex_);
        wake.notify_all();
        store.wake_leader_.signal();
      }) {}

RemoteStore::RemoteStore(StoreUrl::Host host, const ConnectOptions& options)
    : host_(std::move(host)), token_(options.token), session_(random_id()) {
  Waiter self(*this, nullptr);
  Lock lock(mutex_);
  const bool decided = wait_until(lock, self, options.deadline, [this]() REQUIRES(mutex_) {
    return connected_ || !refusal_.ok();
  });
  if (!refusal_.ok()) throw Error(refusal_.code, "store at " + url() + ": " + refusal_.message);
  if (!decided) {
    throw Error(Code::unreachable, fmt::format("no store answers at {}: {}", url(), last_failure_));
  }
}

RemoteStore::RemoteStore(StoreUrl::Host host, const ConnectOptions& options, const Id16& session,
                         os::Fd socket, const Hello& server)
    : host_(std::move(host)), token_(options.token), session_(session) {
  Lock lock(mutex_);
  attach(lock, std::move(socket), server);
}

RemoteStore::~RemoteStore() { close(false); }

std::string RemoteStore::url() const {
  return "tensorbus://" + os::host_port(host_.name, host_.port);
}

void RemoteStore::close(bool cleanup) noexcept {
  end_leases(cleanup);
  if (!forked()) {
    const Lock lock(mutex_);
    closed_ = true;
    for (Waiter* waiter : waiters_) waiter->wake.notify_all();
    wake_leader_.signal();
    abort_.signal();
    if (!led_) socket_.reset();
  }
  join_keep_alive();
}

void RemoteStore::check_usable() const {
  if (closed_) throw closed_error();
}

// The lowest id that waits for its reply, of changes or of barriers.
std::uint64_t RemoteStore::settled(Op op) const {
  for (const auto& [id, call] : calls_) {
    if (op == Op::barrier ? call->op == Op::barrier : is_change(call->op)) return id;
  }
  return next_id_;
}

std::string RemoteStore::call(Op op, const std::string& body, Deadline deadline,
                              Cancellation* cancellation) {
  Call call;
  Waiter self(*this, cancellation);
  call.waiter = &self;
  check_not_forked();
  if (body.size() > max_frame_size - 64) {
    throw Error(Code::invalid_argument,
                fmt::format("{} bytes are too much for one call; at most {} are allowed",
                            body.size(), max_frame_size - 64));
  }
  Lock lock(mutex_);
  check_usable();
  const std::uint64_t id = next_id_++;
  call.op = op;
  calls_.emplace(id, &call);
  Encoder encoder;
  if (is_change(op) || op == Op::barrier) encoder.integer(settled(op));
  encoder.raw(body);
  call.frame = encode_frame(id, static_cast<std::uint8_t>(op), encoder.bytes());
  if (connected_) send(call.frame);
  if (pause_ > Duration::zero()) fail_hopeless({Code::unreachable, last_failure_});

  bool answered = false;
  try {
    answered = wait_until(lock, self, deadline, [&]() REQUIRES(mutex_) { return call.done; });
    if (!answered && is_blocking(op) && connected_) {
      send_cancel(id);
      answered = wait_until(lock, self, Deadline::after(farewell_time),
                            [&]() REQUIRES(mutex_) { return call.done; });
    }
  } catch (...) {
    calls_.erase(id);
    if (!closed_ && is_blocking(op) && connected_) send_cancel(id);
    throw;
  }
  calls_.erase(id);
  if (answered && call.status.ok()) return std::move(call.reply);
  if (answered && call.status.code == Code::timeout) {
    throw Error(Code::timeout, "timed out; " + call.status.message);
  }
  if (answered) throw Error(call.status);
  if (!connected_) {
    throw Error(Code::unreachable,
                fmt::format("the store at {} is gone and did not come back in time: {}", url(),
                            last_failure_));
  }
  throw Error(Code::timeout, fmt::format("the store at {} did not answer in time", url()));
}

bool RemoteStore::wait_until(std::unique_lock<std::mutex>& lock, Waiter& self, Deadline deadline,
                             const std::function<bool()>& finished) {
  Waiting waiting(lock, deadline);
  const auto place = waiters_.insert(waiters_.end(), &self);
  bool holds = false;
  try {
    while (!(holds = finished())) {
      check_usable();
      if (self.cancellation != nullptr && self.cancellation->cancelled()) {
        throw Error(Code::cancelled, "the call was cancelled");
      }
      if (deadline.expired()) break;
      if (led_) {
        waiting.sleep(self.wake);
      } else {
        lead(lock, deadline);
      }
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    waiters_.erase(place);
    pass_the_lead();
    throw;
  }
  waiters_.erase(place);
  pass_the_lead();
  return holds;
}

void RemoteStore::pass_the_lead() {
  if (!led_ && !waiters_.empty()) waiters_.front()->wake.notify_all();
}

void RemoteStore::lead(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  led_ = true;
  try {
    if (connected_) {
      std::array<pollfd, 2> descriptors{
          pollfd{socket_.get(), static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT), 0},
          pollfd{wake_leader_.get(), POLLIN, 0}};
      lock.unlock();
      os::sleep_ready(descriptors, deadline);
      lock.lock();
      if (descriptors[1].revents != 0) wake_leader_.drain();
      if (descriptors[0].revents != 0) {
        // What a server that has gone said last is read before we notice that it has.
        receive();
        if (connected_) flush();
      }
    } else {
      connect(lock, deadline);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    step_back();
    throw;
  }
  step_back();
}

void RemoteStore::step_back() {
  led_ = false;
  // close() leaves the socket to a leader, who may be reading it.
  if (closed_) socket_.reset();
}

void RemoteStore::connect(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  const Duration pause = pause_;
  lock.unlock();
  if (pause > Duration::zero()) {
    std::array<pollfd, 2> descriptors{pollfd{abort_.get(), POLLIN, 0},
                                      pollfd{wake_leader_.get(), POLLIN, 0}};
    os::sleep_ready(descriptors, sooner(deadline, Deadline::after(pause)));
    if (descriptors[1].revents != 0) {
      // Somebody was cancelled; the pause starts again.
      wake_leader_.drain();
      lock.lock();
      return;
    }
  }
  try {
    const Deadline attempt = sooner(deadline, Deadline::after(attempt_time));
    os::Fd socket = os::connect_tcp(host_.name, host_.port, attempt, &abort_);
    const Hello server = shake_hands(socket, session_, token_, attempt, &abort_);
    lock.lock();
    attach(lock, std::move(socket), server);
  } catch (const Error& error) {
    if (!lock.owns_lock()) lock.lock();
    if (error.code() == Code::cancelled && closed_) throw closed_error();
    if (error.code() == Code::interrupted) throw;
    last_failure_ = error.what();
    pause_ = std::clamp<Duration>(pause_ * 2, first_pause, longest_pause);
    // Trying again would not help.
    if (error.code() != Code::unreachable) fail_all(error.status());
    fail_hopeless(error.status());
  }
}

void RemoteStore::attach(std::unique_lock<std::mutex>&, os::Fd socket, const Hello& server) {
  const bool replaced = instance_ && *instance_ != server.id;
  instance_ = server.id;
  socket_ = os::UnsharedFd(std::move(socket));
  connected_ = true;
  pause_ = Duration::zero();
  server_ended_here_ = false;
  refusal_ = {};
  in_.clear();
  out_.clear();
  if (replaced) {
    log::info("the store at {} is a new instance; leases are published again", url());
    for (const std::string& body : lease_requests()) {
      // Older changes are still to be repeated, and may have been applied: the client needs the
      // replies to those.
      Encoder encoder;
      encoder.integer(settled(Op::publish)).raw(body);
      out_ += encode_frame(next_id_++, static_cast<std::uint8_t>(Op::publish), encoder.bytes());
    }
  }
  for (const auto& [_, call] : calls_) out_ += call->frame;
  for (const auto& [_, watch] : watches_) {
    if (replaced) watch->revision = 0;
    send_watch(*watch);
  }
  flush();
}

void RemoteStore::disconnect(const std::string& reason) {
  if (!connected_) return;
  connected_ = false;
  socket_.reset();
  last_failure_ = reason;
  log::debug("connection to {} lost: {}", url(), reason);
}

void RemoteStore::fail_all(const Status& status) {
  for (const auto& [_, call] : calls_) {
    call->done = true;
    call->status = status;
  }
  for (const auto& [_, watch] : watches_) watch->failure = status;
  for (Waiter* waiter : waiters_) waiter->wake.notify_all();
  refusal_ = status;
}

// What need not wait for a server that is away. A lease that cannot be revoked lapses by itself,
// and a server that this process has stopped is not expected back.
void RemoteStore::fail_hopeless(const Status& status) {
  for (const auto& [_, call] : calls_) {
    if (call->op != Op::revoke && !server_ended_here_) continue;
    call->done = true;
    call->status = status;
    call->waiter->wake.notify_all();
  }
}

void RemoteStore::send(std::string_view frame) {
  if (!out_.empty()) {
    out_ += frame;
    return;
  }
  const ssize_t sent = ::send(socket_.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
  const auto taken = sent > 0 ? static_cast<std::size_t>(sent) : 0;
  if (taken == frame.size()) return;
  // The rest, or a failure, is the leader's business: the leader polls for both.
  out_ += frame.substr(taken);
  wake_leader_.signal();
}

void RemoteStore::send_watch(WatchState& watch) {
  // Asks for unknown values only; without `current` the values of the present are not wanted at
  // all.
  const std::uint64_t since = watch.started || watch.wants_current ? watch.revision : UINT64_MAX;
  const std::string body =
      std::move(Encoder().string(wire_key(watch.prefix)).integer(since)).bytes();
  send(encode_frame(watch.id, static_cast<std::uint8_t>(Op::watch), body));
}

void RemoteStore::send_cancel(std::uint64_t id) {
  const std::string body = std::move(Encoder().integer(id)).bytes();
  send(encode_frame(next_id_++, static_cast<std::uint8_t>(Op::cancel), body));
}

void RemoteStore::flush() {
  std::size_t done = 0;
  while (done < out_.size()) {
    const ssize_t sent =
        ::send(socket_.get(), out_.data() + done, out_.size() - done, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        disconnect(os::errno_message("send", errno));
        return;
      }
      break;
    }
    done += static_cast<std::size_t>(sent);
  }
  out_.erase(0, done);
}

void RemoteStore::receive() {
  if (!connected_) return;
  // Not straight into the string: growing the string would clear as much as could come, every time.
  std::array<char, most_received> buffer;
  const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (got == 0) return disconnect("the server closed the connection");
  if (got < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      disconnect(os::errno_message("recv", errno));
    }
    return;
  }
  in_.append(buffer.data(), static_cast<std::size_t>(got));
  std::size_t at = 0;
  try {
    while (in_.size() - at >= frame_header_size) {
      std::uint32_t size = 0;
      std::memcpy(&size, in_.data() + at, sizeof size);
      if (size < frame_header_size - 4 || size > max_frame_size + 1024) {
        throw Error(Code::failed, "the server sent a frame of impossible size");
      }
      if (in_.size() - at < 4 + std::size_t{size}) break;
      dispatch(std::string_view(in_).substr(at, 4 + std::size_t{size}));
      at += 4 + std::size_t{size};
    }
  } catch (const Error& error) {
    return disconnect(error.what());
  }
  in_.erase(0, at);
}

void RemoteStore::dispatch(std::string_view frame) {
  Decoder decoder(frame.substr(4));
  const auto id = decoder.integer<std::uint64_t>();
  const auto code = decoder.integer<std::uint8_t>();
  const std::string_view body = decoder.raw(decoder.left());
  if (const auto found = calls_.find(id); found != calls_.end()) {
    Call& call = *found->second;
    call.done = true;
    call.status.code = static_cast<Code>(code);
    (call.status.ok() ? call.reply : call.status.message) = body;
    call.waiter->wake.notify_all();
    calls_.erase(found);
  } else if (const auto watch = watches_.find(id); watch != watches_.end()) {
    if (code == event_code) {
      take_event(*watch->second, body);
    } else if (code == static_cast<std::uint8_t>(Code::ok)) {
      synchronise(*watch->second, Decoder(body));
    } else {
      watch->second->failure = {static_cast<Code>(code), std::string(body)};
    }
    if (watch->second->reader != nullptr) watch->second->reader->wake.notify_all();
  }
  if (id == 0 && code == static_cast<std::uint8_t>(Code::cancelled)) {
    server_ended_here_ = body == this_process();
  }
  // Any other id is that of a reply that nobody waits for any more.
}

}  // namespace tensorbus::store
