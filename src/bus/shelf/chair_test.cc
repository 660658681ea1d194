#include "bus/shelf/chair.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bus/simulation/simulation.h"

namespace tensorbus::bus {
namespace {

class ChairTest : public testing::Test {
 protected:
  ChairTest() {
    own.record.registration = 1;
    side.members[0] = std::make_shared<const BatchMember>(own.record);
    BatchMember second;
    second.registration = 2;
    side.members[1] = std::make_shared<const BatchMember>(second);
    chair.follow(side, true);
  }

  void propose(const PeerConnectionPtr& from, std::uint64_t serial, Rank rank,
               std::uint64_t registration) {
    chair.take(from, {0, 1, serial, Propose{1, rank, registration, 1, 0}});
  }
  void end(const PeerConnectionPtr& from, std::uint64_t serial) {
    chair.take(from, {0, 1, serial, GiveUp{{Code::failed, "it was recycled"}, Absence::gone, 0}});
  }
  // Why the pull of this rank is over; empty: it goes on.
  std::string told() {
    std::string why;
    for (const AgentMessage& message : chair.take_own()) {
      if (const auto* end = std::get_if<GiveUp>(&message.body)) why += end->status.message;
    }
    return why;
  }

  simulation::SimulatedClock clock;
  std::unique_ptr<fabric::Fabric> fabric =
      fabric::make_memory_fabric(fabric::make_memory_hub(), {"rank 0", "secret", &clock});
  PeerConnections connections{*fabric, "secret"};
  Operations operations;
  simulation::SimulatedStore store;
  simulation::SimulatedStore::Client directory{store};
  Catalog catalog;
  simulation::SimulatedChannel channel;
  Context context{0,       *fabric, connections, operations, directory,
                  catalog, channel, nullptr,     nullptr,    clock.now()};
  OwnRegistration own{context, {"b", "engine", 0}, 1, {}, nullptr};
  Group side;
  Chair chair{own};
  const PeerConnectionPtr other = std::make_shared<PeerConnection>(nullptr);
};

// proves: L1.4
TEST_F(ChairTest, WhatOneRankWillNeverGetEndsThePullOfAll) {
  propose(nullptr, 10, 0, 1);
  propose(other, 20, 1, 2);
  end(other, 20);
  EXPECT_EQ(told(), "rank 1 of side \"engine\": it was recycled");
}

// Seed 58477 of the simulation.
TEST_F(ChairTest, TheEndOfAPullOfARegistrationThatIsOverEndsNobodysPull) {
  propose(nullptr, 10, 0, 1);
  propose(other, 20, 1, 77);
  end(other, 20);
  EXPECT_EQ(told(), "");
  propose(other, 30, 1, 2);
  end(other, 20);
  EXPECT_EQ(told(), "") << "heard again";
  end(other, 30);
  EXPECT_EQ(told(), "rank 1 of side \"engine\": it was recycled");
}

}  // namespace
}  // namespace tensorbus::bus
