#include "os/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

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

}  // namespace
}  // namespace tensorbus::os
