#include "fabric/route/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fabric/shm/fabric.h"
#include "fabric/ucx/ucx.h"

namespace tensorbus::fabric {
namespace {

using testing::HasSubstr;

std::vector<Address> peer_at(const std::string& host) {
  const Identity identity{host, 12, 34, {}, "rank 3"};
  return {{identity, "ucx", "over there"}, {identity, "shm", "tensorbus-x"}};
}

TEST(Select, APeerOfThisHostIsServedBySharedMemory) {
  const auto verdicts = select({"here", "", ""}, peer_at("here"));
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].kind, "shm");
  EXPECT_TRUE(verdicts[0].refusal.ok());
  EXPECT_EQ(verdicts[0].address.where, "tensorbus-x");
  EXPECT_TRUE(verdicts[1].refusal.ok()) << "the second choice, should the first fail";
}

TEST(Select, APeerElsewhereIsServedByTheNetworkAndSharedMemorySaysWhyNot) {
  const auto verdicts = select({"here", "", ""}, peer_at("there"));
  EXPECT_EQ(verdicts[0].refusal.code, Code::unreachable);
  EXPECT_THAT(verdicts[0].refusal.message, HasSubstr("another host"));
  EXPECT_TRUE(verdicts[1].refusal.ok());
  EXPECT_EQ(verdicts[1].address.where, "over there");
  EXPECT_EQ(explain(verdicts), "shm: it is on another host or in another network namespace");
}

TEST(Select, WhatIsMissingOnEitherSideIsSaid) {
  std::vector<Address> peer = peer_at("there");
  const auto without_network = select({"here", "", "no network"}, peer);
  EXPECT_THAT(explain(without_network), HasSubstr("ucx: no network"));
  peer.erase(peer.begin());
  EXPECT_THAT(explain(select({"here", "", ""}, peer)),
              HasSubstr("ucx: the peer does not offer it"));
  EXPECT_THAT(explain(select({"there", "no sockets", ""}, peer)), HasSubstr("shm: no sockets"));
}

TEST(Select, AWayThatRefusesGivesWayToTheNextAndIsRemembered) {
  Route route(select({"here", "", ""}, peer_at("here")));
  ASSERT_NE(route.way(), nullptr);
  EXPECT_EQ(route.way()->kind, "shm");
  route.refuse({Code::denied, "of another user"});
  ASSERT_NE(route.way(), nullptr);
  EXPECT_EQ(route.way()->kind, "ucx");
  route.refuse({Code::denied, "nor here"});
  EXPECT_EQ(route.way(), nullptr);
  EXPECT_EQ(route.explain(), "shm: of another user; ucx: nor here");
}

TEST(Select, ARouteBeginsWithTheFirstWayThatServes) {
  EXPECT_EQ(Route(select({"here", "", ""}, peer_at("there"))).way()->kind, "ucx");
  EXPECT_EQ(Route(select({"here", "", "no network"}, peer_at("there"))).way(), nullptr);
}

TEST(Select, AProcessThatListensOnNoNetworkSaysHowToChangeThat) {
  EXPECT_FALSE(own_reach("").no_ucx.empty());
  if (has_ucx()) {
    EXPECT_THAT(own_reach("").no_ucx, HasSubstr("TENSORBUS_BIND"));
    EXPECT_EQ(own_reach("127.0.0.1").no_ucx, "");
  }
}

TEST(Select, AProbeFindsTheProcessThatIsMeantAndNoOther) {
  const auto fabric = make_shm_fabric({"owner", "secret", nullptr});
  Address address = fabric->address();
  EXPECT_EQ(probe_shm(address), Status{});
  address.identity.start_time += 1;
  EXPECT_EQ(probe_shm(address).code, Code::invalid_argument);
  address.where = "tensorbus-nobody";
  EXPECT_EQ(probe_shm(address).code, Code::unreachable);
}

}  // namespace
}  // namespace tensorbus::fabric
