// An agent whose state cannot be written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "bus/agent/agent.h"
#include "bus/files/heartbeat.h"
#include "bus/simulation/simulation.h"
#include "fabric/memory/fabric.h"

namespace tensorbus::bus {
namespace {

using testing::HasSubstr;

class FailingState final : public StateStore {
 public:
  bool full = false;
  MemoryState inner;

  void put(const std::string& key, std::string_view value) override {
    check();
    inner.put(key, value);
  }
  void erase(const std::string& key) override {
    check();
    inner.erase(key);
  }
  std::optional<std::string> get(const std::string& key) override { return inner.get(key); }
  std::map<std::string, std::string> scan(const std::string& prefix) override {
    return inner.scan(prefix);
  }

 private:
  void check() const {
    if (full) throw Error(Code::failed, "the state cannot be written: No space left on device");
  }
};

class AgentStateTest : public testing::Test {
 protected:
  AgentStateTest() {
    log::set_sink([this](log::Level, std::string_view line) { lines_.emplace_back(line); });
    agent_ = std::make_unique<Agent>(
        AgentParts{*fabric_, channel_, directory_, state_, [this] { return ++random_; }, "secret"},
        AgentOptions{.rank = 0, .space = "test"});
    channel_.push(SessionUp{1, 1});
  }
  ~AgentStateTest() override {
    log::set_sink([](log::Level, std::string_view) {});
  }

  void pass_seconds(int count) {
    for (int i = 0; i < count; ++i) agent_->step(time_ += std::chrono::seconds(1));
  }
  CommandId init_pair(const std::string& name) {
    const CommandId id{1, ++sequence_};
    channel_.push(Submission{id, InitPair{name, "a", "b", 1, {}}, Deadline::never(), nullptr});
    return id;
  }
  std::size_t said(const std::string& part) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        lines_, [&](const auto& line) { return line.find(part) != std::string::npos; }));
  }
  std::size_t kept() { return state_.inner.scan("session/").size(); }

  simulation::SimulatedStore store_;
  simulation::SimulatedStore::Client directory_{store_};
  simulation::SimulatedChannel channel_;
  std::unique_ptr<fabric::Fabric> fabric_ =
      fabric::make_memory_fabric(fabric::make_memory_hub(), {"rank 0", "secret"});
  FailingState state_;
  std::uint64_t random_ = 0;
  std::uint64_t sequence_ = 0;
  TimePoint time_{std::chrono::hours(1)};
  std::vector<std::string> lines_;
  std::unique_ptr<Agent> agent_;
};

TEST_F(AgentStateTest, AHeartbeatThatCannotBeWrittenEndsNothingAndIsToldOnce) {
  pass_seconds(2);
  const auto before = state_.inner.get("heartbeat");
  ASSERT_TRUE(before);
  state_.full = true;
  pass_seconds(5);
  EXPECT_EQ(said("shows no heartbeat"), 1U);
  EXPECT_EQ(said("No space left on device"), 1U);
  state_.full = false;
  pass_seconds(2);
  EXPECT_EQ(said("is written again"), 1U);
  EXPECT_NE(state_.inner.get("heartbeat"), before);
}

TEST_F(AgentStateTest, APairThatCannotBeKeptIsRefusedOnceWithTheReason) {
  state_.full = true;
  const CommandId refused = init_pair("p");
  pass_seconds(3);
  ASSERT_TRUE(channel_.outcomes.contains(refused));
  EXPECT_EQ(channel_.outcomes[refused].status.code, Code::failed);
  EXPECT_THAT(channel_.outcomes[refused].status.message, HasSubstr("No space left on device"));
  EXPECT_TRUE(channel_.doubled.empty());
  state_.full = false;
  const CommandId taken = init_pair("p");
  pass_seconds(1);
  EXPECT_FALSE(channel_.outcomes.contains(taken)) << "it waits for the other side";
  EXPECT_EQ(kept(), 1U);
}

TEST_F(AgentStateTest, WhatCannotBeErasedIsErasedLater) {
  init_pair("p");
  pass_seconds(1);
  ASSERT_EQ(kept(), 1U);
  state_.full = true;
  channel_.push(SessionLost{1, {}});
  pass_seconds(1);
  EXPECT_EQ(kept(), 1U);
  state_.full = false;
  pass_seconds(1);
  EXPECT_EQ(kept(), 0U);
}

}  // namespace
}  // namespace tensorbus::bus
