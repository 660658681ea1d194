#include "fabric/ucx/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensorbus/status.h"

namespace tensorbus::fabric::ucx {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Status refusal_of(const std::vector<std::string>& files) {
  try {
    load(files);
    return {};
  } catch (const Error& error) {
    return error.status();
  }
}

TEST(UcxLibrary, IsLoadedOnceAndSaysFromWhere) {
  EXPECT_THAT(library().file, HasSubstr("libucp"));
  EXPECT_EQ(&library(), &library());
  EXPECT_EQ(load(std::vector{library().file}).ucp_worker_progress, library().ucp_worker_progress);
}

TEST(UcxLibrary, WhereNoneIsTheErrorSaysWhatWasTriedAndWhatToInstall) {
  const Status refusal = refusal_of({"/nowhere/libucp.so.0", "libnothing.so.7"});
  EXPECT_EQ(refusal.code, Code::unsupported);
  EXPECT_THAT(refusal.message, AllOf(HasSubstr("/nowhere/libucp.so.0: "), HasSubstr("libnothing"),
                                     HasSubstr("libucx0"), HasSubstr("TENSORBUS_UCX")));
}

TEST(UcxLibrary, ALibraryThatIsNotUcxIsPassedOver) {
  EXPECT_THAT(refusal_of({"libc.so.6"}).message, HasSubstr("it has no ucp_am_send_nbx"));
  EXPECT_EQ(load(std::vector<std::string>{"libc.so.6", library().file}).file, library().file);
}

}  // namespace
}  // namespace tensorbus::fabric::ucx
