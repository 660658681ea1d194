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

}  // namespace
}  // namespace tensorbus::push_pull
