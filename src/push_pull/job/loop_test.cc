#include "push_pull/job/loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"

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
              os::SpinBudget(std::chrono::nanoseconds(1), std::chrono::nanoseconds(1)));
    Loop::Lock lock = loop.lock();
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    EXPECT_TRUE(loop.wait(lock, deadline, [&] { return events.happened(); }));
    ASSERT_FALSE(deadline.expired()) << "poll " << number;
  }
}

// Always ready. Counts how often the thread that made it sleeps. Every second poll of that thread
// takes `late`: like a core that was yielded and had by a stranger.
class Restless final : public fabric::Progress {
 public:
  explicit Restless(Duration late = Duration::zero()) : late_(late) { ready_.signal(); }
  std::span<const fabric::Event> poll() override {
    if (is_caller() && polls_++ % 2 == 1) std::this_thread::sleep_for(late_);
    return {};
  }
  bool arm() override {
    if (is_caller()) ++sleeps_;
    return true;
  }
  int fd() const noexcept override { return ready_.get(); }
  TimePoint wake_at() const noexcept override { return TimePoint::max(); }
  int sleeps() const { return sleeps_; }

 private:
  bool is_caller() const { return std::this_thread::get_id() == caller_; }

  const std::thread::id caller_ = std::this_thread::get_id();
  const Duration late_;
  os::EventFd ready_;
  int polls_ = 0;
  int sleeps_ = 0;
};

// proves: P12
TEST(LoopTest, WithoutABudgetEveryPollInVainEndsInASleep) {
  OnePoll events(5);
  Restless station;
  Loop loop(events, station, os::SpinBudget(Duration::zero(), Duration::zero()));
  Loop::Lock lock = loop.lock();
  EXPECT_TRUE(loop.wait(lock, Deadline::after(std::chrono::seconds(20)),
                        [&] { return events.happened(); }));
  EXPECT_EQ(station.sleeps(), 4);
}

// proves: P12
TEST(LoopTest, WithoutABudgetTheDeadlineEndsTheWait) {
  OnePoll events(1'000'000'000);
  Restless station;
  Loop loop(events, station, os::SpinBudget(Duration::zero(), Duration::zero()));
  Loop::Lock lock = loop.lock();
  EXPECT_FALSE(loop.wait(lock, Deadline::after(std::chrono::milliseconds(5)),
                         [&] { return events.happened(); }));
}

// How often the other threads of this process have gone to sleep.
long sleeps_of_others() {
  long sleeps = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      long count = 0;
      if (word == "voluntary_ctxt_switches:" && status >> count) sleeps += count;
    }
  }
  return sleeps;
}

// proves: P12
TEST(LoopTest, CallsThatSleepAndComeAgainLeaveOurOwnThreadAlone) {
  OnePoll events(1'000'000'000);
  Silence station;
  Loop loop(events, station, os::SpinBudget(Duration::zero(), Duration::zero()));
  Loop::Lock lock = loop.lock();
  const TimePoint start = now();
  const long before = sleeps_of_others();
  for (int call = 0; call < 400; ++call) {
    loop.wait(lock, Deadline::after(std::chrono::microseconds(500)), [] { return false; });
  }
  const auto looks = (now() - start) / std::chrono::milliseconds(5);
  EXPECT_LT(sleeps_of_others() - before, looks + 20);
}

// proves: P12
TEST(LoopTest, WhoYieldsToAHogSleepsFromThenOn) {
  OnePoll events(1'000'000'000);
  Restless station(std::chrono::milliseconds(2));
  Loop loop(events, station,
            os::SpinBudget(std::chrono::milliseconds(1), Duration::zero(), os::Between::yield));
  Loop::Lock lock = loop.lock();
  constexpr int late = os::SpinBudget::when_yielding.most / os::SpinBudget::when_yielding.cost;
  constexpr int calls = late + 10;
  for (int call = 0; call < calls; ++call) {
    int polls = 0;  // the second one, the late one, brings what is waited for
    loop.wait(lock, Deadline::after(std::chrono::seconds(20)), [&] { return polls++ == 2; });
  }
  EXPECT_EQ(station.sleeps(), calls - late);
}

}  // namespace
}  // namespace tensorbus::push_pull
