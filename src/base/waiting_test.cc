#include "base/waiting.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/interrupt.h"
#include "tensorbus/status.h"

namespace tensorbus {
namespace {

using std::chrono::milliseconds;
using Lock = std::unique_lock<std::mutex>;

constexpr auto never = [] { return false; };

// What the check sees is shared by all tests, because it is a plain function.
Lock* watched = nullptr;
std::atomic<int> asked{0};
std::atomic<int> asked_under_the_lock{0};
std::atomic<bool> pressed{false};

bool look() {
  ++asked;
  if (watched->owns_lock()) ++asked_under_the_lock;
  return pressed;
}

class WaitingTest : public testing::Test {
 protected:
  WaitingTest() {
    watched = &lock;
    asked = asked_under_the_lock = 0;
    pressed = false;
    set_interrupt_check(&look);
  }
  ~WaitingTest() override { set_interrupt_check(nullptr); }

  Code code_of_wait(Deadline deadline) {
    try {
      wait(lock, changed, deadline, never);
    } catch (const Error& error) {
      return error.code();
    }
    return Code::ok;
  }

  std::mutex mutex;
  std::condition_variable changed;
  Lock lock{mutex};
};

TEST_F(WaitingTest, EndsAtOnceWhenItIsDoneAlready) {
  EXPECT_TRUE(wait(lock, changed, Deadline::after(Duration::zero()), [] { return true; }));
  EXPECT_TRUE(lock.owns_lock());
}

TEST_F(WaitingTest, EndsAtItsDeadlineAndNeverBefore) {
  const TimePoint start = now();
  EXPECT_FALSE(wait(lock, changed, Deadline::after(milliseconds(20)), never));
  EXPECT_GE(now() - start, milliseconds(20));
  EXPECT_TRUE(lock.owns_lock());
}

TEST_F(WaitingTest, EndsWhenItIsToldThatItIsDone) {
  bool done = false;
  std::thread other([&] {
    const Lock hold(mutex);
    done = true;
    changed.notify_all();
  });
  EXPECT_TRUE(wait(lock, changed, Deadline::never(), [&] { return done; }));
  lock.unlock();
  other.join();
}

TEST_F(WaitingTest, EndsWithWhatDoneThrows) {
  const auto cancelled = []() -> bool { throw Error(Code::cancelled, "closed"); };
  EXPECT_THROW(wait(lock, changed, Deadline::never(), cancelled), Error);
  EXPECT_TRUE(lock.owns_lock());
}

TEST_F(WaitingTest, AsksForCtrlCWithoutTheLockOnly) {
  EXPECT_EQ(code_of_wait(Deadline::after(longest_sleep() + milliseconds(20))), Code::ok);
  EXPECT_GE(asked, 2);  // when a sleep was long, and at the end
  EXPECT_EQ(asked_under_the_lock, 0);
}

TEST_F(WaitingTest, CtrlCEndsItWithTheLockHeldAgain) {
  pressed = true;
  EXPECT_EQ(code_of_wait(Deadline::never()), Code::interrupted);
  EXPECT_TRUE(lock.owns_lock());
}

TEST_F(WaitingTest, NewsThatNeverEndDoNotKeepCtrlCAway) {
  pressed = true;
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      changed.notify_all();
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(code_of_wait(Deadline::never()), Code::interrupted);
  stop = true;
  other.join();
}

TEST_F(WaitingTest, ShortWaitsAskToo) {
  pressed = true;
  EXPECT_EQ(code_of_wait(Deadline::after(milliseconds(1))), Code::interrupted);
}

TEST_F(WaitingTest, MayIgnoreCtrlC) {
  pressed = true;
  Waiting waiting(lock, Deadline::after(longest_sleep() + milliseconds(20)),
                  Waiting::CtrlC::ignored);
  while (waiting.sleep(changed)) {
  }
  EXPECT_EQ(asked, 0);
}

TEST_F(WaitingTest, SleepsNoLongerThanItIsTold) {
  const TimePoint start = now();
  Waiting waiting(lock, Deadline::never());
  while (now() < start + milliseconds(5)) {
    EXPECT_TRUE(waiting.sleep(changed, Deadline(start + milliseconds(5))));
  }
}

}  // namespace
}  // namespace tensorbus
