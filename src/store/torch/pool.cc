#include "store/torch/pool.h"

#include <algorithm>
#include <array>

namespace tensorbus::store {
namespace {

constexpr std::size_t most_idle = 16;

}  // namespace

void Backoff::pause(const Until& until) {
  std::array<pollfd, 1> stop{pollfd{until.stop->get(), POLLIN, 0}};
  if (os::wait_ready(stop, sooner(until.deadline, Deadline::after(next_)))) {
    throw Error(Code::cancelled, "the call was cancelled, or its store was closed");
  }
  next_ = std::min(2 * next_, longest_pause);
}

TorchPool::TorchPool(StoreUrl::Host host, const Until& until) : host_(std::move(host)) {
  for (Backoff backoff;;) {
    try {
      put_back(TorchConnection(host_, until));
      return;
    } catch (const ConnectionLost&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != Code::unreachable || until.deadline.expired()) throw;
    }
    backoff.pause(until);
  }
}

TorchConnection TorchPool::take(const Until& until) {
  // Parent and child would read each other's replies.
  os::check_not_forked(generation_, "store");
  {
    const Lock lock(mutex_);
    if (closed_) throw Error(Code::cancelled, "the store is closed");
    while (!idle_.empty()) {
      TorchConnection connection = std::move(idle_.back());
      idle_.pop_back();
      // Noticed here, a restart of the server costs nobody an answer.
      if (connection.usable()) return connection;
    }
  }
  for (Backoff backoff;;) {
    try {
      return TorchConnection(host_, until);
    } catch (const Error& error) {
      if (error.code() != Code::unreachable) throw;
      if (until.deadline.expired()) throw Error(error.status());
    }
    backoff.pause(until);
  }
}

void TorchPool::put_back(TorchConnection connection) {
  const Lock lock(mutex_);
  if (!closed_ && idle_.size() < most_idle) idle_.push_back(std::move(connection));
}

void TorchPool::close() noexcept {
  const Lock lock(mutex_);
  closed_ = true;
  idle_.clear();
}

}  // namespace tensorbus::store
