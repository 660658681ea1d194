// What the stand-in refuses, delays and forgets: what NVIDIA documents of the driver, and where
// that is vague, the worst that it allows. The same calls can be made on a real driver.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "device/conformance/standin.h"
#include "os/testing/quiet_fork.h"

namespace tensorbus::device::cuda {
namespace {

constexpr std::size_t size = 4096;
constexpr Stream legacy = nullptr;

// A driver that was just loaded.
class Rules : public testing::Test {
 protected:
  // With the context of device 0 on this thread.
  void start(const Standin::Variables& variables = {}) {
    load(variables);
    ASSERT_EQ(f.cuInit(0), success);
    ASSERT_EQ(f.cuDevicePrimaryCtxRetain(&context, 0), success);
    ASSERT_EQ(f.cuCtxPushCurrent(context), success);
  }
  void load(const Standin::Variables& variables = {}) {
    driver = std::make_unique<Standin>(variables);
    f = driver->functions();
  }
  void TearDown() override {
    if (context != nullptr) f.cuCtxPopCurrent(nullptr);
  }
  Pointer allocate(std::size_t bytes = size) {
    Pointer memory = 0;
    EXPECT_EQ(f.cuMemAlloc(&memory, bytes), success);
    return memory;
  }
  Stream stream(unsigned flags = stream_non_blocking) {
    Stream made = nullptr;
    EXPECT_EQ(f.cuStreamCreate(&made, flags), success);
    return made;
  }
  Event event() {
    Event made = nullptr;
    EXPECT_EQ(f.cuEventCreate(&made, event_disable_timing), success);
    return made;
  }
  // Pinned, and unmapped by nobody.
  std::byte* pinned(std::size_t bytes = size) {
    std::byte* const memory = mapped(bytes, PROT_READ | PROT_WRITE);
    EXPECT_EQ(f.cuMemHostRegister(memory, bytes, register_portable), success);
    return memory;
  }
  static std::byte* mapped(std::size_t bytes, int access) {
    return static_cast<std::byte*>(
        ::mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  Bytes bytes_at(Pointer memory, std::size_t bytes = size) {
    Bytes found(bytes);
    const Stream own = stream();
    EXPECT_EQ(f.cuMemcpyDtoHAsync(found.data(), memory, bytes, own), success);
    return found;
  }

  std::unique_ptr<Standin> driver;
  Functions f;
  Context context = nullptr;
};

Bytes full_of(int value) { return Bytes(size, static_cast<std::byte>(value)); }

// The signal that a child dies of; 0: of none.
template <typename Work>
int signal_of_child(Work&& work) {
  const pid_t child = os::fork_child([&] {
    // The sanitizer's handler would print and end with a code.
    std::signal(SIGSEGV, SIG_DFL);
    work();
  });
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST_F(Rules, BeforeCuInitThereIsOnlyTheVersion) {
  load();
  int number = 0;
  EXPECT_EQ(f.cuDeviceGetCount(&number), not_initialized);
  EXPECT_EQ(f.cuDriverGetVersion(&number), success);
  EXPECT_EQ(number, 12040);
  EXPECT_EQ(f.cuInit(1), invalid_value);
}

TEST_F(Rules, WithoutADeviceCuInitSaysSo) {
  load({{"STANDIN_DEVICES", "0"}});
  EXPECT_EQ(f.cuInit(0), no_device);
}

TEST_F(Rules, DevicesHaveNamesThatSayWhatTheyAre) {
  start({{"STANDIN_DEVICES", "3"}});
  int count = 0;
  EXPECT_EQ(f.cuDeviceGetCount(&count), success);
  EXPECT_EQ(count, 3);
  char name[64];
  EXPECT_EQ(f.cuDeviceGetName(name, sizeof name, 2), success);
  EXPECT_NE(std::strstr(name, "stand-in"), nullptr);
  Uuid first{};
  Uuid second{};
  EXPECT_EQ(f.cuDeviceGetUuid(&first, 0), success);
  EXPECT_EQ(f.cuDeviceGetUuid(&second, 1), success);
  EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
  Device device = 0;
  EXPECT_EQ(f.cuDeviceGet(&device, 3), invalid_device);
}

TEST_F(Rules, FunctionsAreFoundByNameAndVersion) {
  load();
  using Get = Result (*)(const char*, void**, int, std::uint64_t, int*);
  const auto get =
      reinterpret_cast<Get>(::dlsym(::dlopen(STANDIN_CUDA, RTLD_NOW), "cuGetProcAddress_v2"));
  void* found = nullptr;
  int status = -1;
  EXPECT_EQ(get("cuMemAlloc", &found, 12000, 0, &status), success);
  EXPECT_TRUE(found != nullptr && status == 0);
  EXPECT_EQ(get("cuMemAllocNothing", &found, 12000, 0, &status), success) << "as a real driver";
  EXPECT_TRUE(found == nullptr && status == 1);
  EXPECT_EQ(get("cuStreamIsCapturing", &found, 9000, 0, &status), success);
  EXPECT_TRUE(found == nullptr && status == 2);
}

TEST_F(Rules, ContextsArePerThread) {
  start();
  Pointer memory = 0;
  Result other = success;
  std::thread([&] { other = f.cuMemAlloc(&memory, size); }).join();
  EXPECT_EQ(other, invalid_context);
  EXPECT_EQ(f.cuMemAlloc(&memory, size), success);
  Context popped = nullptr;
  EXPECT_EQ(f.cuCtxPopCurrent(&popped), success);
  EXPECT_EQ(popped, context);
  EXPECT_EQ(f.cuMemAlloc(&memory, size), invalid_context);
  EXPECT_EQ(f.cuCtxPopCurrent(nullptr), invalid_context);
  EXPECT_EQ(f.cuCtxPushCurrent(context), success);
}

TEST_F(Rules, AContextThatNobodyRetainsIsGone) {
  start();
  EXPECT_EQ(f.cuDevicePrimaryCtxRelease(0), success);
  Pointer memory = 0;
  EXPECT_EQ(f.cuMemAlloc(&memory, size), invalid_context);
  EXPECT_EQ(f.cuDevicePrimaryCtxRelease(0), invalid_context);
}

// proves: V4.1
TEST_F(Rules, TheHostCannotTouchDeviceMemory) {
  start();
  const Pointer memory = allocate();
  EXPECT_EQ(signal_of_child([&] { *reinterpret_cast<volatile char*>(memory); }), SIGSEGV);
  EXPECT_EQ(signal_of_child([&] { *reinterpret_cast<volatile char*>(memory) = 1; }), SIGSEGV);
}

TEST_F(Rules, DeviceMemoryHasALimitAndStartsSpoilt) {
  start({{"STANDIN_MEMORY_MB", "1"}});
  Pointer memory = 0;
  EXPECT_EQ(f.cuMemAlloc(&memory, 0), invalid_value);
  EXPECT_EQ(f.cuMemAlloc(&memory, (1 << 20) + 1), out_of_memory);
  EXPECT_EQ(bytes_at(allocate()), full_of(0xA5));
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(f.cuMemGetInfo(&free, &total), success);
  EXPECT_EQ(total - free, size);
}

TEST_F(Rules, WhatIsFreedIsFreedOnceAndByItsBase) {
  start();
  const Pointer memory = allocate();
  EXPECT_EQ(f.cuMemFree(memory + 8), invalid_value);
  EXPECT_EQ(f.cuMemFree(memory), success);
  EXPECT_EQ(f.cuMemFree(memory), invalid_value);
  EXPECT_EQ(f.cuMemsetD8Async(memory, 0, 1, legacy), invalid_value);
}

TEST_F(Rules, CopiesStayInsideTheirMemory) {
  start();
  const Pointer memory = allocate();
  Bytes host(size);
  EXPECT_EQ(f.cuMemcpyDtoHAsync(host.data(), memory + size - 8, 16, legacy), invalid_value);
  EXPECT_EQ(f.cuMemcpyDtoHAsync(host.data(), reinterpret_cast<Pointer>(host.data()), 16, legacy),
            invalid_value);
  EXPECT_EQ(f.cuMemcpyDtoHAsync(host.data(), memory, size, reinterpret_cast<Stream>(&host)),
            invalid_handle);
}

TEST_F(Rules, APitchIsNeitherTooShortNorTooLong) {
  start();
  const Pointer memory = allocate();
  Memcpy2D copy{};
  copy.src_type = copy.dst_type = unified;
  copy.src_device = memory;
  copy.dst_device = memory + 2048;
  copy.src_pitch = 10;
  copy.dst_pitch = copy.width = 16;
  copy.height = 4;
  EXPECT_EQ(f.cuMemcpy2DAsync(&copy, legacy), invalid_value);
  copy.src_pitch = std::size_t{1} << 31;
  EXPECT_EQ(f.cuMemcpy2DAsync(&copy, legacy), invalid_value);
  copy.src_pitch = 32;
  EXPECT_EQ(f.cuMemcpy2DAsync(&copy, legacy), success);
}

TEST_F(Rules, MemoryIsPinnedOnce) {
  start();
  std::byte* const memory = pinned();
  EXPECT_EQ(f.cuMemHostRegister(memory + 100, 100, 0), host_memory_already_registered);
  EXPECT_EQ(f.cuMemHostUnregister(memory + 100), host_memory_not_registered);
  EXPECT_EQ(f.cuMemHostUnregister(memory), success);
  EXPECT_EQ(f.cuMemHostRegister(memory, 0, 0), invalid_value);
}

TEST_F(Rules, MemoryThatMayOnlyBeReadNeedsTheFlag) {
  start();
  std::byte* const memory = mapped(size, PROT_READ);
  EXPECT_EQ(f.cuMemHostRegister(memory, size, register_portable), invalid_value);
  EXPECT_EQ(f.cuMemHostRegister(memory, size, register_portable | register_read_only), success);
}

TEST_F(Rules, APinnedTargetIsSpoiltUntilItsCopyIsOver) {
  start({{"STANDIN_LAZY", "1"}});
  const Pointer memory = allocate();
  std::byte* const host = pinned();
  EXPECT_EQ(f.cuMemcpyDtoHAsync(host, memory, size, legacy), success);
  EXPECT_EQ(Bytes(host, host + size), full_of(0xDE));
  EXPECT_EQ(f.cuStreamSynchronize(legacy), success);
  EXPECT_EQ(Bytes(host, host + size), full_of(0xA5));
}

TEST_F(Rules, APageableSourceIsReadAtOnceAndAPageableTargetCompleteAtOnce) {
  start({{"STANDIN_LAZY", "1"}});
  const Pointer memory = allocate();
  Bytes host = full_of(1);
  EXPECT_EQ(f.cuMemcpyHtoDAsync(memory, host.data(), size, legacy), success);
  host = full_of(2);
  EXPECT_EQ(f.cuMemcpyDtoHAsync(host.data(), memory, size, legacy), success);
  EXPECT_EQ(host, full_of(1));
}

TEST_F(Rules, LazyMeansThatNothingRunsThatNobodyWaitsFor) {
  start({{"STANDIN_LAZY", "1"}});
  const Pointer memory = allocate();
  const Stream work = stream();
  EXPECT_EQ(f.cuMemsetD8Async(memory, 7, size, work), success);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(bytes_at(memory), full_of(0xA5));
  EXPECT_EQ(f.cuStreamSynchronize(work), success);
  EXPECT_EQ(bytes_at(memory), full_of(7));
}

TEST_F(Rules, LazyWorkRunsForWhoLooksFourTimes) {
  start({{"STANDIN_LAZY", "1"}});
  const Stream work = stream();
  const Event end = event();
  EXPECT_EQ(f.cuMemsetD8Async(allocate(), 7, size, work), success);
  EXPECT_EQ(f.cuEventRecord(end, work), success);
  for (int look = 0; look < 3; ++look) EXPECT_EQ(f.cuEventQuery(end), not_ready);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  Result last = not_ready;
  for (int look = 0; look < 5000 && last == not_ready; ++look) {
    last = f.cuEventQuery(end);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(last, success);
}

class Modes : public Rules, public testing::WithParamInterface<Standin::Variables> {};

TEST_P(Modes, AStreamWaitsForAnEventOfAnother) {
  start(GetParam());
  const Pointer memory = allocate();
  const Stream writes = stream();
  const Stream reads = stream();
  const Event written = event();
  std::byte* const host = pinned();
  EXPECT_EQ(f.cuMemsetD8Async(memory, 7, size, writes), success);
  EXPECT_EQ(f.cuEventRecord(written, writes), success);
  EXPECT_EQ(f.cuStreamWaitEvent(reads, written, 0), success);
  EXPECT_EQ(f.cuMemcpyDtoHAsync(host, memory, size, reads), success);
  EXPECT_EQ(f.cuStreamSynchronize(reads), success);
  EXPECT_EQ(Bytes(host, host + size), full_of(7));
}

TEST_P(Modes, TheLegacyStreamAndBlockingStreamsWaitForEachOther) {
  start(GetParam());
  const Pointer memory = allocate();
  const Stream blocking = stream(0);
  EXPECT_EQ(f.cuMemsetD8Async(memory, 1, size, blocking), success);
  EXPECT_EQ(f.cuMemsetD8Async(memory, 2, size, legacy), success);
  EXPECT_EQ(f.cuMemsetD8Async(memory, 3, size, blocking), success);
  EXPECT_EQ(f.cuStreamSynchronize(blocking), success);
  EXPECT_EQ(bytes_at(memory), full_of(3));
}

TEST_P(Modes, AFunctionOfTheHostIsCalledInItsTurn) {
  start(GetParam());
  const Stream work = stream();
  std::atomic<int> called = 0;
  const auto call = [](void* count) { ++*static_cast<std::atomic<int>*>(count); };
  EXPECT_EQ(f.cuLaunchHostFunc(work, call, &called), success);
  EXPECT_EQ(f.cuCtxSynchronize(), success);
  EXPECT_EQ(called, 1);
}

INSTANTIATE_TEST_SUITE_P(All, Modes,
                         testing::Values(Standin::Variables{{"STANDIN_LAZY", "1"}},
                                         Standin::Variables{{"STANDIN_SEED", "1"}},
                                         Standin::Variables{{"STANDIN_SEED", "2"}}));

TEST_F(Rules, AnEventIsRecordedInItsOwnContextAndGoneWhenDestroyed) {
  start();
  const Event first = event();
  EXPECT_EQ(f.cuEventQuery(first), success) << "never recorded";
  Context second = nullptr;
  EXPECT_EQ(f.cuDevicePrimaryCtxRetain(&second, 1), success);
  EXPECT_EQ(f.cuCtxPushCurrent(second), success);
  EXPECT_EQ(f.cuEventRecord(first, legacy), invalid_handle);
  EXPECT_EQ(f.cuCtxPopCurrent(nullptr), success);
  EXPECT_EQ(f.cuEventDestroy(first), success);
  EXPECT_EQ(f.cuEventQuery(first), invalid_handle);
  Event wrong = nullptr;
  EXPECT_EQ(f.cuEventCreate(&wrong, event_interprocess), invalid_value);
}

using BeginCapture = Result (*)(Stream, CaptureMode);
using EndCapture = Result (*)(Stream, void**);

template <typename Function>
Function exported(const char* name) {
  return reinterpret_cast<Function>(::dlsym(::dlopen(STANDIN_CUDA, RTLD_NOW), name));
}

TEST_F(Rules, ACaptureIsSpoiltByWhatOtherThreadsAskUnlessTheyAreRelaxed) {
  start();
  const auto begin = exported<BeginCapture>("cuStreamBeginCapture_v2");
  const auto end = exported<EndCapture>("cuStreamEndCapture");
  const Stream work = stream();
  const Event over = event();
  void* graph = nullptr;
  CaptureStatus status = capture_none;
  EXPECT_EQ(begin(work, capture_global), success);
  EXPECT_EQ(f.cuStreamIsCapturing(work, &status), success);
  EXPECT_EQ(status, capture_active);
  CaptureMode mode = capture_relaxed;
  EXPECT_EQ(f.cuThreadExchangeStreamCaptureMode(&mode), success);
  EXPECT_EQ(f.cuEventQuery(over), success);
  EXPECT_EQ(f.cuThreadExchangeStreamCaptureMode(&mode), success);
  EXPECT_EQ(mode, capture_relaxed);
  EXPECT_EQ(end(work, &graph), success);

  EXPECT_EQ(begin(work, capture_global), success);
  EXPECT_EQ(f.cuEventQuery(over), capture_unsupported);
  EXPECT_EQ(end(work, &graph), capture_invalidated);
}

TEST_F(Rules, WhatACapturingStreamIsGivenDoesNotRun) {
  start();
  const Pointer memory = allocate();
  const Stream work = stream();
  void* graph = nullptr;
  EXPECT_EQ(exported<BeginCapture>("cuStreamBeginCapture_v2")(work, capture_relaxed), success);
  EXPECT_EQ(f.cuMemsetD8Async(memory, 7, size, work), success);
  EXPECT_EQ(exported<EndCapture>("cuStreamEndCapture")(work, &graph), success);
  EXPECT_EQ(f.cuStreamSynchronize(work), success);
  EXPECT_EQ(bytes_at(memory), full_of(0xA5));
}

TEST_F(Rules, AStickyErrorIsTheAnswerToEverything) {
  start();
  const Stream work = stream();
  driver->kill_context(0, illegal_address);
  Pointer memory = 0;
  EXPECT_EQ(f.cuMemAlloc(&memory, size), illegal_address);
  EXPECT_EQ(f.cuStreamSynchronize(work), illegal_address);
  EXPECT_EQ(driver->counts().after_death, 1U) << "the first call could not know";
  Context other = nullptr;
  EXPECT_EQ(f.cuDevicePrimaryCtxRetain(&other, 1), success);
  EXPECT_EQ(f.cuCtxPushCurrent(other), success);
  EXPECT_EQ(f.cuMemAlloc(&memory, size), success) << "of another device";
  EXPECT_EQ(f.cuCtxPopCurrent(nullptr), success);
}

TEST_F(Rules, AFunctionOfTheHostIsNotCalledInADeadContext) {
  start({{"STANDIN_LAZY", "1"}});
  const Stream work = stream();
  std::atomic<bool> called = false;
  const auto call = [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; };
  EXPECT_EQ(f.cuLaunchHostFunc(work, call, &called), success);
  driver->kill_context(0, launch_failed);
  driver = std::make_unique<Standin>(Standin::Variables{});  // runs what is left
  EXPECT_FALSE(called);
  context = nullptr;
}

TEST_F(Rules, NothingWorksInAForkedChild) {
  start();
  EXPECT_TRUE(os::holds_in_child([&] {
    int count = 0;
    return f.cuInit(0) == not_initialized && f.cuDeviceGetCount(&count) == not_initialized;
  }));
}

Functions functions_at_exit;

// Handlers run backwards: this one was set before the driver's, and runs after it.
void ask_after_the_end() {
  int count = 0;
  ::_exit(functions_at_exit.cuDeviceGetCount(&count));
}

TEST_F(Rules, AfterExitEverythingIsDeinitialized) {
  load();
  functions_at_exit = f;
  const pid_t child = os::fork_child([&] {
    std::atexit(ask_after_the_end);
    f.cuInit(0);
    std::exit(0);
  });
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), deinitialized);
}

TEST_F(Rules, AFailureCanBeAskedFor) {
  start({{"STANDIN_FAIL", "cuMemAlloc:2:2,cuStreamCreate:1"}});
  Pointer memory = 0;
  Stream made = nullptr;
  EXPECT_EQ(f.cuMemAlloc(&memory, size), success);
  EXPECT_EQ(f.cuMemAlloc(&memory, size), out_of_memory);
  EXPECT_EQ(f.cuMemAlloc(&memory, size), success);
  EXPECT_EQ(f.cuStreamCreate(&made, 0), not_supported);
}

TEST_F(Rules, APointerIsKnownWithItsDeviceAndItsRange) {
  start();
  const Pointer memory = allocate();
  int ordinal = -1;
  unsigned type = 0;
  Pointer base = 0;
  PointerAttribute asked[] = {attribute_device_ordinal, attribute_memory_type,
                              attribute_range_start};
  void* answers[] = {&ordinal, &type, &base};
  EXPECT_EQ(f.cuPointerGetAttributes(3, asked, answers, memory + 5), success);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(type, memory_device);
  EXPECT_EQ(base, memory);
  EXPECT_EQ(f.cuPointerGetAttributes(3, asked, answers, reinterpret_cast<Pointer>(&base)), success)
      << "zeros for what it does not know";
  EXPECT_EQ(type, 0U);
}

TEST_F(Rules, AHandleIsMadeOfABaseAndNotOpenedWhereItWasMade) {
  start();
  const Pointer memory = allocate();
  IpcMemHandle handle{};
  Pointer opened = 0;
  EXPECT_EQ(f.cuIpcGetMemHandle(&handle, memory + 8), invalid_value);
  EXPECT_EQ(f.cuIpcOpenMemHandle(&opened, handle, ipc_lazy_peer_access), invalid_handle);
  EXPECT_EQ(f.cuIpcGetMemHandle(&handle, memory), success);
  EXPECT_EQ(f.cuIpcOpenMemHandle(&opened, handle, ipc_lazy_peer_access), invalid_context);
}

// What a process that has the handle does with the memory: reads it, opens it twice, writes it.
bool uses_memory_of_another(const Functions& f, const IpcMemHandle& handle) {
  Context context = nullptr;
  Pointer first = 0;
  Pointer second = 0;
  Bytes found(size);
  return f.cuInit(0) == success && f.cuDevicePrimaryCtxRetain(&context, 1) == success &&
         f.cuCtxPushCurrent(context) == success &&
         f.cuIpcOpenMemHandle(&first, handle, 0) == invalid_value &&
         f.cuIpcOpenMemHandle(&first, handle, ipc_lazy_peer_access) == success &&
         f.cuIpcOpenMemHandle(&second, handle, ipc_lazy_peer_access) == success &&
         first == second && f.cuMemcpyDtoHAsync(found.data(), first, size, legacy) == success &&
         found == full_of(7) && f.cuMemsetD8Async(first, 8, size, legacy) == success &&
         f.cuStreamSynchronize(legacy) == success && f.cuMemFree(first) == invalid_value &&
         f.cuIpcCloseMemHandle(first) == success && f.cuIpcCloseMemHandle(first) == success &&
         f.cuIpcCloseMemHandle(first) == invalid_value;
}

TEST_F(Rules, AnotherProcessReadsAndWritesWhatItHasAHandleOf) {
  load();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  // Forked before cuInit, so that both can use the driver.
  const pid_t child = os::fork_child([&] {
    IpcMemHandle handle{};
    const bool given = ::read(pipe[0], &handle, sizeof handle) == sizeof handle;
    ::_exit(given && uses_memory_of_another(f, handle) ? 0 : 1);
  });
  ASSERT_EQ(f.cuInit(0), success);
  ASSERT_EQ(f.cuDevicePrimaryCtxRetain(&context, 0), success);
  ASSERT_EQ(f.cuCtxPushCurrent(context), success);
  const Pointer memory = allocate();
  EXPECT_EQ(f.cuMemsetD8Async(memory, 7, size, legacy), success);
  EXPECT_EQ(f.cuStreamSynchronize(legacy), success);
  IpcMemHandle handle{};
  EXPECT_EQ(f.cuIpcGetMemHandle(&handle, memory), success);
  EXPECT_EQ(::write(pipe[1], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(bytes_at(memory), full_of(8));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_F(Rules, AHandleOfFreedMemoryIsRefused) {
  load();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = os::fork_child([&] {
    IpcMemHandle handle{};
    Context other = nullptr;
    Pointer opened = 0;
    const bool refused =
        ::read(pipe[0], &handle, sizeof handle) == sizeof handle && f.cuInit(0) == success &&
        f.cuDevicePrimaryCtxRetain(&other, 0) == success && f.cuCtxPushCurrent(other) == success &&
        f.cuIpcOpenMemHandle(&opened, handle, ipc_lazy_peer_access) == invalid_handle;
    ::_exit(refused ? 0 : 1);
  });
  ASSERT_EQ(f.cuInit(0), success);
  ASSERT_EQ(f.cuDevicePrimaryCtxRetain(&context, 0), success);
  ASSERT_EQ(f.cuCtxPushCurrent(context), success);
  const Pointer memory = allocate();
  IpcMemHandle handle{};
  EXPECT_EQ(f.cuIpcGetMemHandle(&handle, memory), success);
  EXPECT_EQ(f.cuMemFree(memory), success);
  EXPECT_EQ(::write(pipe[1], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace tensorbus::device::cuda
