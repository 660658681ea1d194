#include "store/torch/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>

namespace tensorbus::store {

Until last_word(const Until& until) {
  const Deadline soon = Deadline::after(last_word_time);
  return {until.deadline.at() < soon.at() ? soon : until.deadline, until.stop};
}

namespace {

// True when the socket is ready, false at the deadline.
bool wait_for(pollfd socket, const Until& until, short& ready) {
  std::array<pollfd, 2> descriptors{socket, pollfd{until.stop->get(), POLLIN, 0}};
  if (!os::wait_ready(descriptors, until.deadline)) return false;
  if (descriptors[1].revents != 0) {
    throw Error(Code::cancelled, "the call was cancelled, or its store was closed");
  }
  ready = descriptors[0].revents;
  return true;
}

}  // namespace

TorchConnection::TorchConnection(const StoreUrl::Host& host, const Until& until)
    : address_(os::host_port(host.name, host.port)),
      socket_(os::connect_tcp(host.name, host.port, until.deadline, until.stop)) {
  const auto nonce = static_cast<std::uint32_t>(std::random_device{}());
  try {
    // One write: torch's libuv server drops a connection whose VALIDATE comes in two pieces.
    send(TorchWriter().validate().ping(nonce), until);
    pong(nonce, until);
  } catch (const ConnectionLost& lost) {
    throw ConnectionLost(fmt::format(
        "{} at the hello of torch's protocol: it is no TCPStore server, or it asks for a token",
        lost.what()));
  } catch (const Error& error) {
    if (error.code() != Code::timeout) throw;
    throw Error(Code::unreachable,
                fmt::format("{} accepted the connection, but did not answer the hello of torch's "
                            "protocol in time",
                            address_));
  }
}

bool TorchConnection::usable() const noexcept {
  char byte = 0;
  return taken_ == received_.size() &&
         ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
         (errno == EAGAIN || errno == EWOULDBLOCK);
}

void TorchConnection::send(const TorchWriter& request, const Until& until) {
  std::string_view rest = request.bytes();
  while (!rest.empty()) {
    const auto sent = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      throw ConnectionLost(os::errno_message("sending to " + address_, errno));
    }
    short ready = 0;
    if (!wait_for({socket_.get(), POLLIN | POLLOUT, 0}, until, ready)) {
      throw Error(Code::timeout, fmt::format("{} did not take a request in time", address_));
    }
    // A server that blocks in sending earlier replies takes no more requests until they are read.
    if ((ready & POLLIN) != 0) receive();
  }
}

bool TorchConnection::readable(const Until& until) {
  short ready = 0;
  return wait_for({socket_.get(), POLLIN, 0}, until, ready);
}

void TorchConnection::receive() {
  if (taken_ == received_.size()) {
    received_.clear();
    taken_ = 0;
  }
  std::array<char, 64 * 1024> chunk;
  const auto got = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
  if (got > 0) {
    received_.append(chunk.data(), static_cast<std::size_t>(got));
  } else if (got == 0) {
    throw ConnectionLost(address_ + " closed the connection");
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    throw ConnectionLost(os::errno_message("receiving from " + address_, errno));
  }
}

std::string_view TorchConnection::raw(std::size_t size, const Until& until) {
  while (received_.size() - taken_ < size) {
    if (!readable(until)) {
      throw Error(Code::timeout, fmt::format("{} did not answer in time", address_));
    }
    receive();
  }
  const auto bytes = std::string_view(received_).substr(taken_, size);
  taken_ += size;
  return bytes;
}

std::string TorchConnection::text(const Until& until) {
  const auto size = integer<std::uint64_t>(until);
  if (size > max_value_size) reject(fmt::format("a string of {} bytes", size));
  return std::string(raw(size, until));
}

bool TorchConnection::check(const Until& until) {
  const auto ready = static_cast<TorchReady>(integer<std::uint8_t>(until));
  if (ready != TorchReady::ready && ready != TorchReady::not_ready) reject("no answer to CHECK");
  return ready == TorchReady::ready;
}

void TorchConnection::pong(std::uint32_t nonce, const Until& until) {
  if (integer<std::uint32_t>(until) != nonce) reject("another number than it was pinged with");
}

std::vector<std::optional<std::string>> TorchConnection::values(std::span<const std::string> keys,
                                                                const Until& until) {
  std::vector<std::optional<std::string>> found(keys.size());
  // MULTI_GET has no way to say "absent" (the legacy server hangs up instead), and CHECK speaks of
  // all its keys together: so one CHECK per key before, and one after for what came back empty.
  TorchWriter checks;
  for (const std::string& key : keys) checks.check(key);
  send(checks, until);
  std::vector<std::size_t> places;
  std::vector<std::string> present;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!check(until)) continue;
    places.push_back(i);
    present.push_back(keys[i]);
  }
  if (present.empty()) return found;

  TorchWriter request;
  request.multi_get(present);
  // In the same write, so that next to nothing comes in between.
  for (const std::string& key : present) request.check(key);
  send(request, until);
  for (const std::size_t place : places) found[place] = text(until);
  for (const std::size_t place : places) {
    if (!check(until) && found[place]->empty()) found[place].reset();
  }
  return found;
}

bool TorchConnection::wait_for_all(std::span<const std::string> keys, const Until& until) {
  const auto wake = [this](const Until& end) {
    const auto reply = static_cast<TorchWake>(integer<std::uint8_t>(end));
    if (reply != TorchWake::all_exist && reply != TorchWake::cancelled) reject("no answer to WAIT");
    return reply;
  };
  send(TorchWriter().wait(keys), until);
  if (readable(until)) {
    if (wake(until) != TorchWake::all_exist) reject("an end of a wait that was not cancelled");
    return true;
  }
  const Until end = last_word(until);
  send(TorchWriter().cancel_wait(), end);
  if (wake(end) == TorchWake::cancelled) return false;
  // The wake crossed the cancel, which is answered all the same.
  if (wake(end) != TorchWake::cancelled) reject("two ends of one wait");
  return true;
}

void TorchConnection::reject(std::string_view what) const {
  throw Error(Code::failed, fmt::format("{} does not speak torch's TCPStore protocol: it sent {}",
                                        address_, what));
}

}  // namespace tensorbus::store
