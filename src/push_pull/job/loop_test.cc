#include "push_pull/job/loop.h"

#include <gtest/gtest.h>

namespace tensorbus::push_pull {
namespace {

// Something happens in one of the polls that this thread makes.
class OnePoll final : public Loop::Events {
 public:
  explicit OnePoll(int number) : number_(number) {}
  void on_up(const std::shared_ptr<fabric::Peer>&) override {}
  void on_message(fabric::Peer&, std::string_view) override {}
  void on_lost(fabric::Peer&, const Status&) override {}
  void on_turn() override {
    if (std::this_thread::get_id() == caller_) ++polls_;
  }
  bool happened() const { return polls_ >= number_; }

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
  const int number_;
  int polls_ = 0;
};

// Nobody ever wakes who sleeps here.
class Silence final : public fabric::Progress {
 public:
  std::span<const fabric::Event> poll() override { return {}; }
  bool arm() override { return true; }
  int fd() const noexcept override { return -1; }
  TimePoint wake_at() const noexcept override { return TimePoint::max(); }
};

// proves: P12
TEST(LoopTest, WhatAPollBroughtIsNotSleptThrough) {
  // After so many polls it has spun for long enough and sleeps; nobody would wake it.
  for (int number = 1; number <= 32; ++number) {
    OnePoll events(number);
    Silence station;
    Loop loop(events, station,
              SpinBudget(std::chrono::nanoseconds(1), std::chrono::nanoseconds(1)));
    Loop::Lock lock = loop.lock();
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    EXPECT_TRUE(loop.wait(lock, deadline, [&] { return events.happened(); }));
    ASSERT_FALSE(deadline.expired()) << "poll " << number;
  }
}

// Always ready. Counts how often the thread that made it sleeps.
class Restless final : public fabric::Progress {
 public:
  Restless() { ready_.signal(); }
  std::span<const fabric::Event> poll() override { return {}; }
  bool arm() override {
    if (std::this_thread::get_id() == caller_) ++sleeps_;
    return true;
  }
  int fd() const noexcept override { return ready_.get(); }
  TimePoint wake_at() const noexcept override { return TimePoint::max(); }
  int sleeps() const { return sleeps_; }

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
  os::EventFd ready_;
  int sleeps_ = 0;
};

// proves: P12
TEST(LoopTest, WithoutABudgetEveryPollInVainEndsInASleep) {
  OnePoll events(5);
  Restless station;
  Loop loop(events, station, SpinBudget(Duration::zero(), Duration::zero()));
  Loop::Lock lock = loop.lock();
  EXPECT_TRUE(loop.wait(lock, Deadline::after(std::chrono::seconds(20)),
                        [&] { return events.happened(); }));
  EXPECT_EQ(station.sleeps(), 4);
}

// proves: P12
TEST(LoopTest, WithoutABudgetTheDeadlineEndsTheWait) {
  OnePoll events(1'000'000'000);
  Restless station;
  Loop loop(events, station, SpinBudget(Duration::zero(), Duration::zero()));
  Loop::Lock lock = loop.lock();
  EXPECT_FALSE(loop.wait(lock, Deadline::after(std::chrono::milliseconds(5)),
                         [&] { return events.happened(); }));
}

}  // namespace
}  // namespace tensorbus::push_pull
