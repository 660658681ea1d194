#include "bus/embedded.h"

#include <cstring>

#include "base/log.h"
#include "base/secret.h"
#include "bus/agent.h"
#include "bus/loop.h"
#include "bus/store_directory.h"
#include "fabric/shm_fabric.h"

namespace tensorbus::bus {
namespace {

std::uint64_t random_number() {
  const Id16 id = random_id();
  std::uint64_t number = 0;
  std::memcpy(&number, id.data(), sizeof(number));
  return number;
}

}  // namespace

Embedded::Embedded(std::shared_ptr<Store> store, EmbeddedOptions options, Deadline deadline)
    : store_(std::move(store)), pool_(std::move(options.pool)) {
  if (options.rank < 0) {
    throw Error(Code::invalid_argument,
                "rank " + std::to_string(options.rank) + " is negative; ranks are 0 or more");
  }
  if (pool_ == nullptr) pool_ = std::make_shared<fabric::Pool>();
  const std::string secret = shared_secret(*store_, options.space, deadline);
  fabric::ShmOptions shm;
  shm.name = "rank " + std::to_string(options.rank);
  shm.secret = secret;
  shm.pool = pool_;
  fabric_ = fabric::make_shm_fabric(std::move(shm));
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
