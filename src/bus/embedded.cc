#include "bus/embedded.h"

#include "base/log.h"
#include "bus/agent.h"
#include "bus/claim.h"
#include "bus/fabrics.h"
#include "bus/loop.h"
#include "bus/store_directory.h"

namespace tensorbus::bus {

Embedded::Embedded(std::shared_ptr<Store> store, EmbeddedOptions options, Deadline deadline)
    : store_(std::move(store)), pool_(std::move(options.pool)) {
  if (options.rank < 0) {
    throw Error(Code::invalid_argument,
                "rank " + std::to_string(options.rank) + " is negative; ranks are 0 or more");
  }
  if (pool_ == nullptr) pool_ = std::make_shared<fabric::Pool>();
  const std::string secret = shared_secret(*store_, options.space, deadline);
  fabric_ = make_agent_fabric(options.rank, secret, pool_, options.bind, options.ports);
  check_rank_is_free(*store_, options.space, options.rank, *fabric_, secret, deadline);
  channel_ = make_memory_channel();
  directory_ = make_store_directory(store_, {options.space});
  agent_ = std::make_unique<Agent>(
      AgentParts{*fabric_, *channel_, *directory_, state_, random_number, secret},
      AgentOptions{options.rank, options.space});
  thread_ = std::thread([this] {
    try {
      run(*agent_, stop_);
    } catch (const std::exception& error) {
      log::error("bus: the agent of rank {} has failed: {}", agent_->rank(), error.what());
    }
  });
}

Embedded::~Embedded() {
  stop_.signal();
  thread_.join();
  agent_.reset();
}

}  // namespace tensorbus::bus
