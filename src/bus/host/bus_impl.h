// What a Bus of the public header is made of; links share it.
#pragma once

#include <memory>
#include <utility>

#include "bus/client/client.h"
#include "bus/host/embedded.h"
#include "tensorbus/bus.h"

namespace tensorbus {

struct Bus::Impl {
  Impl(std::shared_ptr<Store> store, bus::EmbeddedOptions options, Deadline deadline)
      : agent(std::move(store), std::move(options), deadline),
        client(agent.connect(), agent.pool(), agent.crew()) {}

  bus::Embedded agent;
  bus::Client client;
};

namespace bus {

ReadBy read_by(ReaderOutcome outcome);
TransferResult result_of(const Outcome& outcome);

}  // namespace bus
}  // namespace tensorbus
