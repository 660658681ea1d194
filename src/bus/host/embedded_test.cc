// Agents on threads, with the real store client, channel and shared-memory fabric.
#include "bus/host/embedded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <numeric>

#include "base/testing/calls.h"
#include "bus/channel/loan.h"
#include "bus/simulation/fixture.h"

namespace tensorbus::bus {
namespace {

using simulation::side;
using simulation::TestSide;
using std::chrono::seconds;

const Shape shape{64, 48};

// A rank with its agent and one tensor of 64-bit numbers.
class Worker {
 public:
  Worker(const std::string& store, Rank rank, const TestSide& own, std::string remote, bool pooled,
         std::function<void(Step)> reached = nullptr)
      : rank_(rank), side_(own), remote_(std::move(remote)) {
    EmbeddedOptions options;
    options.reached = std::move(reached);
    options.rank = rank;
    options.space = "test";
    agent_ = std::make_unique<Embedded>(connect(StoreUrl::parse(store)), options, soon());
    client_ = agent_->connect();
    local_ = own.whole().local_shape(shape, rank);
    strides_ = plan::contiguous_strides(local_);
    const std::size_t bytes = static_cast<std::size_t>(element_count(local_)) * 8;
    memory_ = pooled ? agent_->pool()->allocate(bytes)
                     : std::shared_ptr<std::byte>(new std::byte[bytes],
                                                  std::default_delete<std::byte[]>());
    std::memset(memory_.get(), 0, bytes);
  }

  Outcome run(const Command& command, std::shared_ptr<Loan> loan = nullptr) {
    return client_->submit(command, std::move(loan), soon(), soon())->wait(soon());
  }
  Outcome init() {
    return run(InitPair{"p", side_.name, remote_, static_cast<std::int64_t>(side_.ranks.size()),
                        side_.layout});
  }
  Outcome enlist() {
    const TensorView view{memory_.get(), Dtype::int64, local_, strides_};
    loan_ = make_loan(std::span(&view, 1), *agent_->pool());
    RegisterBatch command;
    command.batch = "b";
    command.registration = static_cast<std::uint64_t>(rank_) + 100;
    command.items = {{"p", "", Dtype::int64, local_, strides_, std::nullopt}};
    return run(command, loan_);
  }
  Outcome send() {
    const std::uint64_t ticket = ++ticket_;
    const Outcome outcome = run(Transfer{"b", Direction::send, std::nullopt, ticket});
    loan_->gate().move_to(ticket + 1);
    return outcome;
  }
  Outcome recv_without_deadline() {
    return client_
        ->submit(Transfer{"b", Direction::recv, std::nullopt, 0}, nullptr, Deadline::never(),
                 Deadline::never())
        ->wait(Deadline::never());
  }
  Outcome recv() { return run(Transfer{"b", Direction::recv, std::nullopt, 0}); }

  // The sum over all elements tells whether every one is the expected.
  void fill(std::int64_t tag) {
    visit([&](std::int64_t& number, std::int64_t i) { number = tag + i; });
  }
  std::size_t wrong(std::int64_t tag) {
    std::size_t count = 0;
    visit([&](std::int64_t number, std::int64_t i) { count += number == tag + i ? 0 : 1; });
    return count;
  }

 private:
  template <typename Visit>
  void visit(Visit visit_element) {
    const Holding holding = side_.whole().holding(shape, rank_);
    auto* number = reinterpret_cast<std::int64_t*>(memory_.get());
    for (const Interval& rows : holding.dims[0]) {
      for (std::int64_t row = rows.begin; row < rows.end; ++row) {
        for (const Interval& columns : holding.dims[1]) {
          for (std::int64_t column = columns.begin; column < columns.end; ++column) {
            visit_element(*number++, row * shape[1] + column);
          }
        }
      }
    }
  }

  Rank rank_;
  TestSide side_;
  std::string remote_;
  std::unique_ptr<Embedded> agent_;
  std::shared_ptr<Connection> client_;
  Shape local_;
  Shape strides_;
  std::shared_ptr<std::byte> memory_;
  std::shared_ptr<Loan> loan_;
  std::uint64_t ticket_ = 0;
};

class EmbeddedTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Memory, EmbeddedTest, testing::Bool(), [](const auto& each) {
  return each.param ? std::string("Pooled") : std::string("Private");
});

// proves: B1.8, B3.1, B3.8
TEST_P(EmbeddedTest, RoundsBetweenTwoAndTwoRanks) {
  const TestSide train = side("train", {0, 1}, Shard{0});
  const TestSide infer = side("infer", {2, 3}, Shard{1});
  const std::string store = "memory://embedded_test";
  const auto keeps_it = connect(StoreUrl::parse(store));
  std::vector<std::unique_ptr<Worker>> workers;
  for (const Rank rank : {0, 1}) {
    workers.push_back(std::make_unique<Worker>(store, rank, train, "infer", GetParam()));
  }
  for (const Rank rank : {2, 3}) {
    workers.push_back(std::make_unique<Worker>(store, rank, infer, "train", GetParam()));
  }
  const auto all = [&](const std::function<Outcome(Worker&, bool sends)>& call) {
    std::vector<std::future<Outcome>> calls;
    for (std::size_t at = 0; at < workers.size(); ++at) {
      calls.push_back(
          std::async(std::launch::async, [&, at] { return call(*workers[at], at < 2); }));
    }
    for (auto& each : calls) {
      const Outcome outcome = each.get();
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.message;
    }
  };
  all([](Worker& worker, bool) { return worker.init(); });
  all([](Worker& worker, bool) { return worker.enlist(); });
  for (std::int64_t round = 1; round <= 3; ++round) {
    workers[0]->fill(round * 10'000);
    workers[1]->fill(round * 10'000);
    all([](Worker& worker, bool sends) { return sends ? worker.send() : worker.recv(); });
    EXPECT_EQ(workers[2]->wrong(round * 10'000), 0u);
    EXPECT_EQ(workers[3]->wrong(round * 10'000), 0u);
  }
}

TEST(Embedded, ARankHasOneAgent) {
  const std::string store = "memory://embedded_rank_test";
  const std::shared_ptr<Store> shared = connect(StoreUrl::parse(store));
  EmbeddedOptions options;
  options.rank = 4;
  auto first = std::make_unique<Embedded>(shared, options, soon());
  const auto second = [&] { Embedded(shared, options, soon()); };
  // The thread of the first agent publishes the agent's record.
  const std::string key = KeyScope("default", "bus").full("agent/4");
  shared->wait({key, false, 1, std::nullopt, {}}, soon());
  EXPECT_THROW(second(), Error);
  first.reset();
  EXPECT_NO_THROW(second());
}

TEST(Embedded, WhateverEndsAnAgentItsCommandsHaveAnOutcomeAndOthersMissIt) {
  const TestSide train = side("train", {0}, Replicate{});
  const TestSide infer = side("infer", {1}, Replicate{});
  const std::string store = "memory://embedded_failure_test";
  const auto keeps_it = connect(StoreUrl::parse(store));
  Worker sender(store, 0, train, "infer", true);
  Worker reader(store, 1, infer, "train", true, [](Step step) {
    if (step == Step::reading) throw std::runtime_error("the sky has fallen");
  });
  for (const bool init : {true, false}) {
    auto other =
        std::async(std::launch::async, [&] { return init ? sender.init() : sender.enlist(); });
    EXPECT_TRUE((init ? reader.init() : reader.enlist()).status.ok());
    EXPECT_TRUE(other.get().status.ok());
  }
  auto sends = std::async(std::launch::async, [&] { return sender.send(); });
  const Outcome outcome = reader.recv_without_deadline();
  EXPECT_EQ(outcome.status.code, Code::failed);
  EXPECT_THAT(outcome.status.message,
              testing::AllOf(testing::HasSubstr("the agent of rank 1 has failed"),
                             testing::HasSubstr("the sky has fallen")));
  EXPECT_THROW(reader.recv_without_deadline(), Error);
  EXPECT_FALSE(sends.get().status.ok());
}

// proves: B3.10, B3.17
TEST(Embedded, AnAgentThatStopsIsMissedByItsReaders) {
  const TestSide train = side("train", {0}, Replicate{});
  const TestSide infer = side("infer", {1}, Replicate{});
  const std::string store = "memory://embedded_stop_test";
  const auto keeps_it = connect(StoreUrl::parse(store));
  auto sender = std::make_unique<Worker>(store, 0, train, "infer", true);
  Worker reader(store, 1, infer, "train", true);
  for (const bool init : {true, false}) {
    auto other =
        std::async(std::launch::async, [&] { return init ? sender->init() : sender->enlist(); });
    const Outcome mine = init ? reader.init() : reader.enlist();
    EXPECT_TRUE(mine.status.ok()) << mine.status.message;
    EXPECT_TRUE(other.get().status.ok());
  }
  auto waits = std::async(std::launch::async, [&] { return reader.recv(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  sender.reset();
  const Outcome outcome = waits.get();
  EXPECT_EQ(outcome.status.code, Code::peer_lost);
  EXPECT_THAT(outcome.lost, testing::ElementsAre(0));
  EXPECT_THAT(outcome.status.message, testing::HasSubstr("rank 0"));
}

}  // namespace
}  // namespace tensorbus::bus
