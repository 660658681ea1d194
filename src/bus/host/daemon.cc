#include "bus/host/daemon.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "bus/agent/agent.h"
#include "bus/directory/store_directory.h"
#include "bus/host/copy_threads.h"
#include "bus/host/loop.h"
#include "bus/host/observation.h"
#include "bus/host/station.h"

namespace tensorbus::bus {

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
  const CopyThreads copy_threads(options_.copy_threads);
  const std::string secret = shared_secret(*store_, options_.space, deadline);
  station_ = open_station(*store_,
                          {options_.rank, options_.space, secret, pool_, options_.bind,
                           options_.ports, copy_threads.crew()},
                          deadline);
  directory_ = make_store_directory(store_, {options_.space});
  observation_ = std::make_unique<Observation>(
      *channel_, pool_, ObservationOptions{options_.rank, options_.space, false, options_.metrics});
  agent_ = std::make_unique<Agent>(
      AgentParts{*station_, observation_->channel(), *directory_, *state_, random_number, secret,
                 options_.reached, copy_threads, &steady_clock(), &observation_->channel()},
      AgentOptions{options_.rank, options_.space, options_.retain, observation_->report()});
  log::info("agent {} of namespace \"{}\": commands at {}, state in {}", options_.rank,
            options_.space, socket_path(options_.queue_path), options_.state_path);
}

Daemon::~Daemon() {
  try {
    close(false);
  } catch (const std::exception& error) {
    log::error("bus: the agent of rank {} ends with an error: {}", options_.rank, error.what());
  }
}

void Daemon::run() {
  try {
    bus::run(*agent_, stop_);
  } catch (...) {
    failed_ = current_exception_status().code != Code::interrupted;
    throw;
  }
}

void Daemon::step() { agent_->step(now()); }

void Daemon::close(bool destroy) {
  if (agent_ == nullptr) return;
  if (!failed_ && !agent_->over()) {
    stop_.signal();
    run();
  }
  agent_.reset();
  directory_.reset();
  observation_.reset();
  if (destroy) {
    channel_->remove_at_close();
    state_->remove_at_close();
  }
  channel_.reset();
  station_.reset();
  state_.reset();
}

}  // namespace tensorbus::bus
