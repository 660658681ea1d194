// proves: L4.2
#include "bus/registration/routes.h"

#include <gtest/gtest.h>

#include <deque>

namespace tensorbus::bus {
namespace {

// Knows one subscription, and counts how often it was asked.
struct Knower {
  PeerConnectionPtr connection;
  std::uint64_t serial = 0;
  mutable int asked = 0;

  bool is_for(const PeerConnectionPtr& from, const AgentMessage& message) const {
    ++asked;
    return from == connection && message.serial == serial;
  }
};

class RoutesTest : public testing::Test {
 protected:
  RoutesTest() {
    for (std::uint64_t serial = 1; serial <= 100; ++serial) all_.push_back({one_, serial});
  }

  Knower* find(const PeerConnectionPtr& from, std::uint64_t serial) {
    return routes_.find(from, {1, 1, serial, Look{1}}, all_);
  }
  int asked() const {
    int sum = 0;
    for (const Knower& each : all_) sum += each.asked;
    return sum;
  }

  const PeerConnectionPtr one_ = std::make_shared<PeerConnection>(nullptr);
  const PeerConnectionPtr other_ = std::make_shared<PeerConnection>(nullptr);
  std::deque<Knower> all_;
  Routes<Knower> routes_;
};

TEST_F(RoutesTest, OnlyWhoeverKnowsASubscriptionIsAskedAgain) {
  EXPECT_EQ(find(one_, 100), &all_[99]);
  EXPECT_EQ(asked(), 100);
  for (int time = 0; time < 10; ++time) EXPECT_EQ(find(one_, 100), &all_[99]);
  EXPECT_EQ(asked(), 110);
}

TEST_F(RoutesTest, TheSameNumberOnAnotherConnectionIsAnotherSubscription) {
  EXPECT_EQ(find(one_, 3), &all_[2]);
  EXPECT_EQ(find(other_, 3), nullptr);
  all_[7] = {other_, 3};
  EXPECT_EQ(find(other_, 3), &all_[7]);
  EXPECT_EQ(find(one_, 3), &all_[2]);
}

TEST_F(RoutesTest, WhatIsRememberedIsNotBelieved) {
  EXPECT_EQ(find(one_, 3), &all_[2]);
  all_[2].serial = 1000;
  EXPECT_EQ(find(one_, 3), nullptr);
  all_[9].serial = 3;
  EXPECT_EQ(find(one_, 3), &all_[9]);
}

TEST_F(RoutesTest, WhoeverIsGoneIsForgotten) {
  find(one_, 3);
  find(one_, 4);
  all_[5].connection = other_;
  find(other_, 6);
  EXPECT_EQ(routes_.size(), 3u);
  routes_.forget(all_[2]);
  EXPECT_EQ(routes_.size(), 2u);
  routes_.forget(*one_);
  EXPECT_EQ(routes_.size(), 1u);
  EXPECT_EQ(find(other_, 6), &all_[5]);
}

}  // namespace
}  // namespace tensorbus::bus
