#include "os/io/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

TEST(SealedMemfdTest, NeitherShrinksNorGrows) {
  const Fd file = sealed_memfd("test", 8192);
  EXPECT_NE(::ftruncate(file.get(), 4096), 0);
  EXPECT_NE(::ftruncate(file.get(), 16384), 0);
  EXPECT_EQ(checked_memfd_size(file), 8192u);
  const Mapping mapping = map(file, 8192, true, true);
  mapping.data()[8191] = std::byte{1};
}

TEST(SealedMemfdTest, AReopenedOneIsReadOnlyAndSeesWrites) {
  const Fd file = sealed_memfd("test", 4096);
  const Mapping writable = map(file, 4096, true, false);
  const Fd reader = reopen_read_only(file);
  const Mapping readable = map(reader, checked_memfd_size(reader), false, false);
  writable.data()[7] = std::byte{9};
  EXPECT_EQ(readable.data()[7], std::byte{9});
  EXPECT_THROW(map(reader, 4096, true, false), Error);
}

TEST(SealedMemfdTest, UnsealedMemoryIsRefused) {
  const Fd file(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(file.get(), 4096), 0);
  try {
    checked_memfd_size(file);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::denied);
  }
  const Fd other(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THROW(checked_memfd_size(other), Error);
}

TEST(SealedMemfdTest, MoreThanThereIsIsAnErrorWithAHint) {
  EXPECT_GT(available_memory(), 0u);
  try {
    sealed_memfd("too large", std::size_t{1} << 45);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no room"), std::string::npos) << error.what();
  }
}

class GroupsTest : public testing::Test {
 protected:
  ~GroupsTest() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& content) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }
  std::size_t available(const std::string& membership) {
    std::istringstream lines(membership);
    return available_in_groups(lines, root_.string());
  }

  const std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("tensorbus groups " + std::to_string(::getpid()));
};

TEST_F(GroupsTest, WithoutALimitThereIsNone) {
  EXPECT_EQ(available("0::/\n"), SIZE_MAX);
  write("job/memory.max", "max");
  write("job/memory.current", "1000");
  EXPECT_EQ(available("0::/job\n"), SIZE_MAX);
  EXPECT_EQ(available("nonsense\n\n:::\n"), SIZE_MAX);
}

TEST_F(GroupsTest, TheTightestGroupCounts) {
  write("job/memory.max", "9000");
  write("job/memory.current", "8000");
  write("job/task/memory.max", "5000");
  write("job/task/memory.current", "1000");
  EXPECT_EQ(available("0::/job/task\n"), 1000u);
  EXPECT_EQ(available("0::/job\n"), 1000u);
}

TEST_F(GroupsTest, FilesThatWereReadMakeRoom) {
  write("memory.max", "10000");
  write("memory.current", "9500");
  write("memory.stat", "anon 500\ninactive_file 7000\nactive_file 2000\n");
  EXPECT_EQ(available("0::/\n"), 7500u);
}

TEST_F(GroupsTest, VersionOneCountsToo) {
  write("memory/job/memory.limit_in_bytes", "4000");
  write("memory/job/memory.usage_in_bytes", "3500");
  write("memory/job/memory.stat", "cache 900\ntotal_inactive_file 500\n");
  EXPECT_EQ(available("9:name=systemd:/\n4:cpu,memory:/job\n0::/\n"), 1000u);
}

}  // namespace
}  // namespace tensorbus::os
