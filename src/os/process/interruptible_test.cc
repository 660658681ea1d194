#include "os/process/interruptible.h"

#include <gtest/gtest.h>

#include <thread>

#include "os/io/poll.h"
#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

Code code_of_wait(Deadline deadline) {
  EventFd never;
  pollfd polled{never.get(), POLLIN, 0};
  try {
    wait_ready({&polled, 1}, deadline);
  } catch (const Error& error) {
    return error.code();
  }
  return Code::ok;
}

TEST(InterruptibleTest, OneWaitEndsAndThoseThatCleanUpGoOn) {
  Interruption interruption;
  const Interruptible interruptible(interruption);
  std::thread other([&] { interruption.interrupt("enough"); });
  EXPECT_EQ(code_of_wait(Deadline::never()), Code::cancelled);
  other.join();
  EXPECT_EQ(code_of_wait(Deadline::after(std::chrono::milliseconds(10))), Code::ok);
}

TEST(InterruptibleTest, AnInterruptionIsForItsThreadAndItsTime) {
  Interruption interruption;
  interruption.interrupt("enough");
  const Deadline soon = Deadline::after(std::chrono::milliseconds(10));
  { const Interruptible interruptible(interruption); }
  EXPECT_EQ(code_of_wait(soon), Code::ok);
  const Interruptible interruptible(interruption);
  std::thread other([&] { EXPECT_EQ(code_of_wait(soon), Code::ok); });
  other.join();
  EXPECT_EQ(code_of_wait(Deadline::never()), Code::cancelled);
}

}  // namespace
}  // namespace tensorbus::os
