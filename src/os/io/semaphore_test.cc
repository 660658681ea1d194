#include "os/io/semaphore.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

TEST(SemaphoreTest, CountsWaitsAndGoesWithItsName) {
  const std::string name = "/tensorbus_semaphore_test_" + std::to_string(::getpid());
  {
    NamedSemaphore semaphore(name);
    EXPECT_THROW(NamedSemaphore(std::string(name)), Error);
    EXPECT_FALSE(semaphore.wait(Deadline::after(std::chrono::milliseconds(10))));
    semaphore.post();
    semaphore.post();
    EXPECT_EQ(semaphore.value(), 2);
    EXPECT_TRUE(semaphore.wait(Deadline::after(Duration::zero())));
    EXPECT_TRUE(semaphore.wait(Deadline::never()));
    std::thread poster([&] { semaphore.post(); });
    EXPECT_TRUE(semaphore.wait(Deadline::after(std::chrono::seconds(20))));
    poster.join();
  }
  EXPECT_TRUE(unlink_semaphore(name));
  EXPECT_FALSE(unlink_semaphore(name));
}

}  // namespace
}  // namespace tensorbus::os
