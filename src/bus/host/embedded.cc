#include "bus/host/embedded.h"

#include "base/log.h"
#include "bus/agent/agent.h"
#include "bus/directory/store_directory.h"
#include "bus/host/copy_threads.h"
#include "bus/host/free_rank.h"
#include "bus/host/loop.h"
#include "bus/host/observation.h"
#include "bus/host/station.h"

namespace tensorbus::bus {

Embedded::Embedded(std::shared_ptr<Store> store, EmbeddedOptions options, Deadline deadline)
    : store_(std::move(store)), rank_was_free_(!options.rank), pool_(std::move(options.pool)) {
  const CopyThreads copy_threads(options.copy_threads);
  crew_ = copy_threads.crew();
  if (options.rank && *options.rank < 0) {
    throw Error(Code::invalid_argument,
                "rank " + std::to_string(*options.rank) + " is negative; ranks are 0 or more");
  }
  rank_ = options.rank ? *options.rank : free_rank(*store_, options.space, deadline);
  if (pool_ == nullptr) pool_ = std::make_shared<fabric::Pool>();
  const std::string secret = shared_secret(*store_, options.space, deadline);
  station_ = open_station(
      *store_, {rank_, options.space, secret, pool_, options.bind, options.ports, crew_}, deadline);
  channel_ = make_memory_channel();
  directory_ = make_store_directory(store_, {options.space});
  AgentOptions agent{.rank = rank_, .space = options.space};
  if (options.observed) {
    observation_ = std::make_unique<Observation>(
        *channel_, pool_, ObservationOptions{rank_, options.space, true, options.metrics});
    agent.report = observation_->report();
  }
  ObservedChannel* const observed = options.observed ? &observation_->channel() : nullptr;
  Channel& channel = observed != nullptr ? *observed : static_cast<Channel&>(*channel_);
  agent_ = std::make_unique<Agent>(
      AgentParts{*station_, channel, *directory_, state_, random_number, secret, options.reached,
                 copy_threads, &steady_clock(), observed},
      std::move(agent));
  thread_ = std::thread([this] { serve(); });
}

void Embedded::check(const InitPair& pair) const {
  if (rank_was_free_) check_order_does_not_matter(pair);
}

void Embedded::serve() noexcept {
  try {
    run(*agent_, stop_);
  } catch (...) {
    channel_->fail(current_exception_status());
    // Other ranks shall see that the agent is gone, and nobody reads or writes memory any more.
    agent_.reset();
    station_.reset();
    directory_.reset();
  }
}

Embedded::~Embedded() {
  stop_.signal();
  thread_.join();
  agent_.reset();
  crew_->dismiss();
}

}  // namespace tensorbus::bus
