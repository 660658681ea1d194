#include "os/io/fd.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "os/testing/no_descriptors.h"
#include "tensorbus/status.h"

namespace tensorbus::os {
namespace {

TEST(FdTest, ADuplicateIsClosedInProgramsThatAreStarted) {
  const Fd original(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd copy = duplicate(original.get());
  EXPECT_NE(copy.get(), original.get());
  EXPECT_NE(::fcntl(copy.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(FdTest, WithoutDescriptorsThereIsAnErrorAndNoDuplicate) {
  const Fd original(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::optional<Error> error;
  {
    const NoDescriptors none;
    try {
      duplicate(original.get());
    } catch (const Error& caught) {
      error = caught;
    }
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Code::failed);
  EXPECT_THAT(error->what(), testing::HasSubstr("cannot duplicate a descriptor: Too many open"));
}

TEST(FdTest, WhatIsNoDescriptorHasNoDuplicate) { EXPECT_THROW(duplicate(-1), Error); }

}  // namespace
}  // namespace tensorbus::os
