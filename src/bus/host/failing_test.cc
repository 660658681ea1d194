// Agents that fail at any step of the protocol: whoever waits for them is told, whatever it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <new>
#include <set>
#include <stdexcept>

#include "base/testing/calls.h"
#include "bus/client/client.h"
#include "bus/host/embedded.h"

namespace tensorbus::bus {
namespace {

constexpr std::int64_t element_number = 100;

// One rank: all that it does with its agent, call by call.
class FailingSide {
 public:
  FailingSide(const std::string& store, Rank rank, std::function<void(Step)> reached)
      : sends_(rank == 0), memory_(element_number) {
    EmbeddedOptions options;
    options.rank = rank;
    options.space = "failing";
    options.reached = std::move(reached);
    agent_ = std::make_unique<Embedded>(connect(StoreUrl::parse(store)), options, soon());
    client_ = std::make_unique<Client>(agent_->connect(), agent_->pool(), agent_->crew());
  }
  ~FailingSide() { close(); }

  void close() { client_->close(Deadline::after(std::chrono::milliseconds(200))); }

  // How the first call failed that did; ok if none did.
  Status run() {
    try {
      do_everything();
    } catch (const Error& error) {
      return error.status();
    } catch (const std::exception& error) {
      return {Code::failed, std::string("thrown at its maker: ") + error.what()};
    }
    return {};
  }

 private:
  void do_everything() {
    const std::string own = sends_ ? "a" : "b";
    client_->init_pair({"pair", own, sends_ ? "b" : "a", 1, {}}, true, deadline_);
    const std::uint64_t rounds = enlist("rounds", {});
    for (int round = 0; round < 2; ++round) {
      client_->transfer("rounds", sends_ ? Direction::send : Direction::recv, {}, views(), true,
                        deadline_);
    }
    RegisterOptions shelf;
    shelf.role = own;
    shelf.versioned =
        Versioned{sends_ ? Direction::send : Direction::recv, 0, false, sends_ ? 2 : 0};
    enlist("shelf", shelf);
    if (sends_) {
      client_->publish("shelf", own, views(), {}, deadline_);
    } else {
      client_->pull(Pull{"shelf", own, {}, {}, true}, views(), true, deadline_);
    }
    client_->close_batch({"rounds", rounds}, true, deadline_);
  }
  std::vector<TensorView> views() {
    return {{reinterpret_cast<std::byte*>(memory_.data()), Dtype::float32, shape_, strides_}};
  }
  std::uint64_t enlist(const std::string& batch, RegisterOptions options) {
    const BatchTensor tensor{views().front(), "pair", "w", std::nullopt};
    return client_->register_tensors(batch, {&tensor, 1}, options, deadline_);
  }

  const bool sends_;
  const Deadline deadline_ = soon();
  const Shape shape_{element_number};
  const Shape strides_{1};
  std::vector<float> memory_;
  std::unique_ptr<Embedded> agent_;
  std::unique_ptr<Client> client_;
};

struct Told {
  bool came = false;  // to that step
  Status status;
};

// What the worker of an agent is told that fails at a step.
Told told(Step at, Rank failing, bool without_memory) {
  const std::string store = "memory://failing_test";
  const auto keeps_it = connect(StoreUrl::parse(store));
  std::atomic<bool> came = false;
  FailingSide failed(store, failing, [&](Step step) {
    if (step != at) return;
    came = true;
    if (without_memory) throw std::bad_alloc();
    throw std::runtime_error("the sky has fallen");
  });
  FailingSide other(store, 1 - failing, nullptr);
  auto others = std::async(std::launch::async, [&] { return other.run(); });
  const Status status = failed.run();
  if (came) other.close();
  others.get();
  return {came, status};
}

class FailingTest : public testing::TestWithParam<Step> {};

// Without the first: an agent that fails as it starts is an error of its maker.
std::vector<Step> all_steps() {
  std::vector<Step> all;
  for (std::size_t at = 1; at < step_count; ++at) all.push_back(static_cast<Step>(at));
  return all;
}
INSTANTIATE_TEST_SUITE_P(Steps, FailingTest, testing::ValuesIn(all_steps()), [](const auto& each) {
  std::string name(to_string(each.param));
  std::ranges::replace(name, ' ', '_');
  return name;
});

TEST_P(FailingTest, WhateverItWasEveryCallHasAnOutcome) {
  // Senders that come back, cancelled sends, both at send, rounds that were missed, versions that
  // were taken back, the votes of several ranks.
  const std::set<Step> not_in_it{
      Step::generation_ended, Step::revoked, Step::conflicting, Step::skipping,
      Step::draining,         Step::pinning, Step::voted,       Step::decided};
  bool came = false;
  for (const Rank failing : {0, 1}) {
    for (const bool without_memory : {false, true}) {
      const Told told = bus::told(GetParam(), failing, without_memory);
      if (!told.came) {
        EXPECT_TRUE(told.status.ok()) << told.status.message;
        break;
      }
      came = true;
      if (GetParam() == Step::closing) continue;  // every call has ended by then
      EXPECT_EQ(told.status.code, Code::failed) << told.status.message;
      EXPECT_THAT(told.status.message,
                  testing::HasSubstr(without_memory ? "out of memory" : "the sky has fallen"));
    }
  }
  EXPECT_NE(came, not_in_it.contains(GetParam())) << "the list of steps is not true any more";
}

}  // namespace
}  // namespace tensorbus::bus
