// Which drivers are taken, and what is said of the others.
#include "device/cuda/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/calls.h"
#include "device/conformance/standin.h"
#include "os/testing/quiet_fork.h"

namespace tensorbus::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <typename Call>
Status refusal_of(const Call& call) {
  try {
    call();
    return {};
  } catch (const Error& error) {
    return error.status();
  }
}

TEST(CudaLibrary, IsLoadedWithItsVersionAndItsFile) {
  const Standin driver({});
  const cuda::Library library = cuda::load(STANDIN_CUDA);
  EXPECT_EQ(library.version, 12040);
  EXPECT_EQ(cuda::version_text(library.version), "12.4");
  EXPECT_THAT(library.file, HasSubstr("libcuda.so.1"));
}

TEST(CudaLibrary, TheOneThatAFrameworkHasLoadedIsTaken) {
  const Standin driver({});
  EXPECT_EQ(cuda::library().functions.cuInit, driver.functions().cuInit);
}

TEST(CudaLibrary, WhereNoneIsTheErrorSaysSo) {
  const Status refusal = refusal_of([] { cuda::load("/nowhere/libcuda.so.1"); });
  EXPECT_EQ(refusal.code, Code::unsupported);
  EXPECT_THAT(refusal.message, HasSubstr("libcuda.so.1 cannot be loaded: /nowhere"));
}

TEST(CudaLibrary, ALibraryThatIsNoDriverIsRefused) {
  EXPECT_THAT(refusal_of([] { cuda::load("libc.so.6"); }).message, HasSubstr("is no CUDA driver"));
}

// proves: V1.1
TEST(CudaLibrary, ADriverThatIsTooOldIsNamedWithItsVersion) {
  const Status refusal = refusal_of([] {
    const Standin driver(Standin::Variables{{"STANDIN_VERSION", "11080"}});
  });
  EXPECT_EQ(refusal.code, Code::unsupported);
  EXPECT_THAT(refusal.message, AllOf(HasSubstr("CUDA 11.8"), HasSubstr("12.0 or later")));
}

TEST(CudaLibrary, WithoutADeviceTheErrorHasAHint) {
  const Standin driver(Standin::Variables{{"STANDIN_DEVICES", "0"}});
  const Status refusal = refusal_of([&] { cuda::initialise(driver.functions()); });
  EXPECT_EQ(refusal.code, Code::unsupported);
  EXPECT_THAT(refusal.message, AllOf(HasSubstr("CUDA_ERROR_NO_DEVICE"), HasSubstr("--gpus all")));
}

TEST(CudaLibrary, DevicesAreListedWithNamesAndUuids) {
  const Standin driver(Standin::Variables{{"STANDIN_DEVICES", "2"}});
  cuda::initialise(driver.functions());
  const std::vector<Info> devices = cuda::list(driver.functions());
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(to_string(devices[1].id), "cuda:1");
  EXPECT_NE(devices[0].uuid, devices[1].uuid);
  EXPECT_FALSE(devices[0].is_real);
  EXPECT_EQ(driver.calls("cuDevicePrimaryCtxRetain"), 0) << "a list makes no context";
}

TEST(CudaLibrary, ADeviceThatIsNotThereIsRefused) {
  const Standin driver(Standin::Variables{{"STANDIN_DEVICES", "1"}});
  EXPECT_EQ(code_of([&] { cuda::make(driver.functions(), {1}, {}); }), Code::unsupported);
}

TEST(CudaLibrary, AProcessHasOneOfEachDeviceAndAForkedChildNone) {
  const Standin driver({});
  Device& device = cuda::open({0});
  EXPECT_EQ(&cuda::open({0}), &device);
  EXPECT_TRUE(device.open_queue()->copy({}).wait(soon()));
  EXPECT_TRUE(os::holds_in_child([] { return code_of([] { cuda::open({0}); }) == Code::failed; }));
}

}  // namespace
}  // namespace tensorbus::device
