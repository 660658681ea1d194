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

std::optional<Error> refusal(int descriptor) {
  try {
    duplicate(descriptor);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

TEST(FdTest, WithoutDescriptorsThereIsAnErrorAndNoDuplicate) {
  const Fd original(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(refusal(-1)) << "UBSan's first look at an error takes a descriptor";
  std::optional<Error> error;
  {
    const NoDescriptors none;
    error = refusal(original.get());
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Code::failed);
  EXPECT_THAT(error->what(), testing::HasSubstr("cannot duplicate a descriptor: Too many open"));
}

}  // namespace
}  // namespace tensorbus::os
