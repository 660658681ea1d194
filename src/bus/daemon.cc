#include "bus/daemon.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "bus/agent.h"
#include "bus/claim.h"
#include "bus/fabrics.h"
#include "bus/loop.h"
#include "bus/store_directory.h"

namespace tensorbus::bus {
std::string default_queue_path(Rank rank) {
  return "/tmp/agent_rank" + std::to_string(rank) + "_command.lmdb";
}
std::string default_state_path(Rank rank) {
  return "/tmp/agent_rank" + std::to_string(rank) + "_state.lmdb";
}

Daemon::Daemon(std::shared_ptr<Store> store, DaemonOptions options, Deadline deadline)
    : options_(std::move(options)),
      store_(std::move(store)),
      pool_(std::make_shared<fabric::Pool>()),
      state_(std::make_unique<LmdbState>(options_.state_path)) {
  SocketChannelOptions channel;
  channel.queue_path = options_.queue_path;
  channel.space = options_.space;
  channel.rank = options_.rank;
  channel.open_loan = [pool = pool_](LoanOffer offer) {
    return open_loan(std::move(offer), *pool);
  };
  channel_ = make_socket_channel(channel);
  const std::string secret = shared_secret(*store_, options_.space, deadline);
  fabric_ = make_agent_fabric(options_.rank, secret, pool_, options_.bind, options_.ports);
  check_rank_is_free(*store_, options_.space, options_.rank, *fabric_, secret, deadline);
  directory_ = make_store_directory(store_, {options_.space});
  agent_ = std::make_unique<Agent>(AgentParts{*fabric_, *channel_, *directory_, *state_,
                                              random_number, secret, options_.reached},
                                   AgentOptions{options_.rank, options_.space});
  log::info("agent {} of namespace \"{}\": commands at {}, state in {}", options_.rank,
            options_.space, socket_path(options_.queue_path), options_.state_path);
}

Daemon::~Daemon() { close(false); }

void Daemon::run() { bus::run(*agent_, stop_); }

void Daemon::step() { agent_->step(now()); }

void Daemon::close(bool destroy) {
  if (agent_ == nullptr) return;
  if (!agent_->over()) {
    stop_.signal();
    bus::run(*agent_, stop_);
  }
  agent_.reset();
  directory_.reset();
  if (destroy) {
    channel_->remove_at_close();
    state_->remove_at_close();
  }
  channel_.reset();
  fabric_.reset();
  state_.reset();
}

}  // namespace tensorbus::bus
