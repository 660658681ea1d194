#include "os/process/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace tensorbus::os {
namespace {

TEST(CoresTest, AreThoseThatTheThreadMayRunOn) {
  std::thread([] {
    const Cores all = own_cores();
    ASSERT_GE(all.count(), 1U);
    cpu_set_t one;
    CPU_ZERO(&one);
    const int here = ::sched_getcpu();
    CPU_SET(static_cast<std::size_t>(here), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    const Cores left = own_cores();
    EXPECT_EQ(left.count(), 1U);
    EXPECT_EQ(left.words[static_cast<std::size_t>(here) / 64] >> (here % 64), 1U);
    EXPECT_TRUE(left.overlaps(all));
  }).join();
}

TEST(CoresTest, OverlapWhereTheyShareOne) {
  const Cores first{{0b0110}};
  const Cores second{{0b1100, 1}};
  const Cores apart{{0b1000, 2}};
  EXPECT_TRUE(first.overlaps(second));
  EXPECT_FALSE(first.overlaps(apart));
  EXPECT_TRUE(second.overlaps(apart));
  EXPECT_FALSE(Cores{}.overlaps(second));
  EXPECT_EQ(second.count(), 3U);
}

}  // namespace
}  // namespace tensorbus::os
