#include "os/process/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace tensorbus::os {
namespace {

class CoresTest : public testing::Test {
 protected:
  ~CoresTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::size_t cores(const std::string& membership) {
    std::istringstream lines(membership);
    return cores_in_groups(lines, root_.string());
  }

  const std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("tensorbus cores " + std::to_string(::getpid()));
};

TEST_F(CoresTest, WithoutAQuotaThereIsNoLimit) {
  EXPECT_EQ(cores("0::/\n"), SIZE_MAX);
  write("job/cpu.max", "max 100000\n");
  EXPECT_EQ(cores("0::/job\n"), SIZE_MAX);
  write("cpu/job/cpu.cfs_quota_us", "-1\n");
  write("cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores("3:cpu,cpuacct:/job\n"), SIZE_MAX);
}

TEST_F(CoresTest, TheTightestQuotaCountsAndIsRoundedUp) {
  write("job/cpu.max", "350000 100000\n");
  write("job/task/cpu.max", "800000 100000\n");
  EXPECT_EQ(cores("0::/job/task\n"), 4u);
  write("job/task/cpu.max", "50000 100000\n");
  EXPECT_EQ(cores("0::/job/task\n"), 1u);
}

TEST_F(CoresTest, TheFirstVersionOfGroupsCountsToo) {
  write("cpu/job/cpu.cfs_quota_us", "200000\n");
  write("cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores("5:memory:/job\n3:cpu,cpuacct:/job\n"), 2u);
}

TEST(UsableCoresTest, AThreadThatIsBoundToOneCoreHasOne) {
  std::thread([] {
    cpu_set_t all;
    ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
    int first = 0;
    while (!CPU_ISSET(first, &all)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(usable_cores(), 1u);
  }).join();
}

TEST(OwnCoresTest, AreThoseThatTheThreadMayRunOn) {
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

TEST(OwnCoresTest, OverlapWhereTheyShareOne) {
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
