#include "bus/client/turns.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/testing/calls.h"
#include "os/process/interruptible.h"
#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

Deadline now() { return Deadline::after(Duration::zero()); }

TEST(TurnsTest, AreTakenInTheOrderInWhichTheyWereBegun) {
  const auto turns = std::make_shared<Turns>();
  constexpr std::size_t count = 8;
  std::vector<std::unique_ptr<Turn>> queued;
  for (std::size_t i = 0; i < count; ++i) queued.push_back(std::make_unique<Turn>(turns));
  std::vector<std::size_t> order;  // written by whoever has the turn
  std::vector<std::thread> threads;
  for (std::size_t i = count; i-- > 0;) {
    threads.emplace_back([&, i] {
      EXPECT_TRUE(queued[i]->wait(soon()));
      order.push_back(i);
      queued[i]->leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_FALSE(turns->taken());
}

TEST(TurnsTest, WhoeverGivesUpHoldsNobodyUp) {
  const auto turns = std::make_shared<Turns>();
  Turn first(turns);
  auto second = std::make_unique<Turn>(turns);
  Turn third(turns);
  EXPECT_FALSE(second->wait(now()));
  second.reset();
  EXPECT_FALSE(third.is_next());
  first.leave();
  EXPECT_TRUE(third.wait(now()));
  first.leave();
  EXPECT_TRUE(third.is_next()) << "leaving twice is leaving once";
}

TEST(TurnsTest, AWaitIsEndedByWhoeverInterruptsItsThread) {
  const auto turns = std::make_shared<Turns>();
  const Turn first(turns);
  Turn second(turns);
  os::Interruption interruption;
  const os::Interruptible interruptible(interruption);
  interruption.interrupt("enough");
  try {
    second.wait(soon());
    FAIL() << "it had its turn";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::cancelled);
    EXPECT_STREQ(error.what(), "enough");
  }
}

}  // namespace
}  // namespace tensorbus::bus
