#include "device/conformance/standin.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <stdexcept>
#include <thread>

#include "base/testing/calls.h"

namespace tensorbus::device {
namespace {

// Before the library is loaded, and again for one that is.
cuda::Library restarted(const Standin::Variables& variables) {
  static Standin::Variables before;
  for (const auto& [name, value] : before) ::unsetenv(name.c_str());
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  before = variables;
  void* handle = ::dlopen(STANDIN_CUDA, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(::dlerror());
  reinterpret_cast<decltype(&standin_restart)>(::dlsym(handle, "standin_restart"))();
  return cuda::load(STANDIN_CUDA);
}

template <typename Function>
Function hook(const char* name) {
  return reinterpret_cast<Function>(::dlsym(::dlopen(STANDIN_CUDA, RTLD_NOW), name));
}

// For good: the stream of a dead context may still look at its flag when its bench is gone.
std::atomic<bool>* new_flag() {
  static auto* const flags = new std::deque<std::atomic<bool>>;
  return &flags->emplace_back(true);
}

void wait_for_release(void* held) { static_cast<std::atomic<bool>*>(held)->wait(true); }

}  // namespace

Standin::Standin(const Variables& variables)
    : library_(restarted(variables)),
      counts_(hook<decltype(&standin_counts)>("standin_counts")),
      calls_(hook<decltype(&standin_calls)>("standin_calls")),
      kill_(hook<decltype(&standin_kill_context)>("standin_kill_context")),
      shadow_(hook<decltype(&standin_shadow)>("standin_shadow")) {}

std::byte* Standin::shadow(const std::byte* on_device) const {
  return static_cast<std::byte*>(shadow_(reinterpret_cast<cuda::Pointer>(on_device)));
}

StandinBench::StandinBench(const Standin& standin, const cuda::Functions& functions,
                           const cuda::Options& options)
    : standin_(standin), user_(standin.functions()) {
  device_ = cuda::make(functions, {0}, options);
  check(user_.cuDevicePrimaryCtxRetain(&context_, 0));
  check(user_.cuCtxPushCurrent(context_));
  check(user_.cuStreamCreate(&reads_, cuda::stream_non_blocking));
}

StandinBench::~StandinBench() {
  for (const auto& [handle, held] : held_) release({handle});
  device_.reset();
  for (const cuda::Pointer memory : memory_) user_.cuMemFree(memory);
  for (const cuda::Stream stream : streams_) user_.cuStreamDestroy(stream);
  user_.cuStreamDestroy(reads_);
  user_.cuCtxPopCurrent(nullptr);
  user_.cuDevicePrimaryCtxRelease(0);
}

void StandinBench::check(cuda::Result result) const {
  if (result != cuda::success) throw std::runtime_error(cuda::describe(user_, result));
}

std::byte* StandinBench::allocate(std::size_t bytes) {
  check(user_.cuMemAlloc(&memory_.emplace_back(), bytes));
  return reinterpret_cast<std::byte*>(memory_.back());
}

Stream StandinBench::make_stream() {
  check(user_.cuStreamCreate(&streams_.emplace_back(), cuda::stream_non_blocking));
  return {reinterpret_cast<std::uintptr_t>(streams_.back())};
}

void StandinBench::write(Stream stream, std::byte* to, const Bytes& bytes) {
  check(user_.cuMemcpyHtoDAsync(reinterpret_cast<cuda::Pointer>(to), bytes.data(), bytes.size(),
                                reinterpret_cast<cuda::Stream>(stream.handle)));
}

Bytes StandinBench::read(const std::byte* from, std::size_t bytes) {
  Bytes found(bytes);
  check(
      user_.cuMemcpyDtoHAsync(found.data(), reinterpret_cast<cuda::Pointer>(from), bytes, reads_));
  check(user_.cuStreamSynchronize(reads_));
  return found;
}

void StandinBench::hold(Stream stream) {
  auto* const held = held_[stream.handle] = new_flag();
  check(user_.cuLaunchHostFunc(reinterpret_cast<cuda::Stream>(stream.handle), wait_for_release,
                               held));
}

void StandinBench::release(Stream stream) {
  *held_.at(stream.handle) = false;
  held_.at(stream.handle)->notify_all();
}

void StandinBench::set_capturing(Stream stream, bool on) {
  const auto handle = reinterpret_cast<cuda::Stream>(stream.handle);
  if (on) {
    const auto begin =
        hook<cuda::Result (*)(cuda::Stream, cuda::CaptureMode)>("cuStreamBeginCapture_v2");
    return check(begin(handle, cuda::capture_global));
  }
  void* graph = nullptr;
  check(hook<cuda::Result (*)(cuda::Stream, void**)>("cuStreamEndCapture")(handle, &graph));
}

void StandinBench::kill() { standin_.kill_context(0, cuda::illegal_address); }

bool StandinBench::finish(const Mark& mark) { return mark.wait(soon()); }

void StandinBench::let_go_on() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

}  // namespace tensorbus::device
