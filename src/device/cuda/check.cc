#include "device/cuda/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "device/cuda/device.h"

namespace tensorbus::device::cuda {
namespace {

constexpr std::size_t checked_bytes = std::size_t{4} << 20;
constexpr int kernels = 200;

// Memory and a stream of a user on the device, by the driver itself.
class User {
 public:
  User(const Functions& functions, Id id) : calls_(functions, id) {
    calls_(&Functions::cuDevicePrimaryCtxRetain, &context_, id.ordinal);
    try {
      calls_(&Functions::cuCtxPushCurrent, context_);
      pushed_ = true;
      calls_(&Functions::cuMemAlloc, &memory_, checked_bytes);
      calls_(&Functions::cuStreamCreate, &stream_, stream_non_blocking);
    } catch (...) {
      let_go();
      throw;
    }
  }
  ~User() { let_go(); }
  User(const User&) = delete;
  User& operator=(const User&) = delete;

  std::byte* memory() const { return reinterpret_cast<std::byte*>(memory_); }
  device::Stream stream() const { return {reinterpret_cast<std::uintptr_t>(stream_)}; }
  // Long enough that a thread that does not wait finds the work under way.
  void fill_again_and_again(unsigned char last) {
    for (int i = 1; i < kernels; ++i) fill(static_cast<unsigned char>(last + i));
    fill(last);
  }

 private:
  void let_go() noexcept {
    if (calls_.is_dead()) return;
    if (stream_ != nullptr) calls_.restore(&Functions::cuStreamDestroy, stream_);
    if (memory_ != 0) calls_.restore(&Functions::cuMemFree, memory_);
    if (pushed_) calls_.restore(&Functions::cuCtxPopCurrent, nullptr);
    calls_.restore(&Functions::cuDevicePrimaryCtxRelease, calls_.id().ordinal);
  }
  void fill(unsigned char value) {
    calls_(&Functions::cuMemsetD8Async, memory_, value, checked_bytes, stream_);
  }

  Calls calls_;
  Context context_ = nullptr;
  bool pushed_ = false;
  Pointer memory_ = 0;
  Stream stream_ = nullptr;
};

// One device, its user, and a window of pinned memory.
class Checking {
 public:
  Checking(const Functions& functions, Id id, Deadline deadline)
      : deadline_(deadline),
        user_(functions, id),
        device_(make(functions, id, {})),
        pin_(device_->pin({.bytes = window_})),
        queue_(device_->open_queue()) {}

  void pinning() {
    finish(queue_->copy({}));
    if (pin_->state() != Pin::State::pinned) {
      throw Error(Code::failed, "host memory cannot be pinned: copies work, but are slow");
    }
  }
  void bytes() {
    fill_window();
    finish(queue_->copy({Block{window_.data(), user_.memory(), checked_bytes}}));
    std::ranges::fill(window_, std::byte{0});
    finish(queue_->copy({Block{user_.memory(), window_.data(), checked_bytes}}));
    for (std::size_t i = 0; i < checked_bytes; ++i) expect(i, pattern(i));
  }
  // Columns of a matrix on the device, side by side in the window.
  void strides() {
    constexpr std::int64_t rows = 1024;
    constexpr std::int64_t pitch = checked_bytes / rows;
    constexpr std::size_t width = pitch / 4;
    fill_window();
    finish(queue_->copy({Block{window_.data(), user_.memory(), checked_bytes}}));
    std::ranges::fill(window_, std::byte{0});
    finish(queue_->copy({Block{user_.memory() + width,
                               window_.data(),
                               width,
                               rows,
                               1,
                               {pitch, 0},
                               {static_cast<std::int64_t>(width), 0}}}));
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < width; ++i) {
        expect(row * width + i, pattern(row * pitch + width + i));
      }
    }
  }
  // What a stream has still to do comes before the copy.
  void order() {
    constexpr unsigned char last = 42;
    user_.fill_again_and_again(last);
    queue_->wait(device_->moment(user_.stream()));
    finish(queue_->copy({Block{user_.memory(), window_.data(), checked_bytes}}));
    for (std::size_t i = 0; i < checked_bytes; ++i) expect(i, std::byte{last});
  }
  // What is known to have passed is there.
  void knowledge() {
    constexpr unsigned char last = 77;
    user_.fill_again_and_again(last);
    finish(queue_->watch(device_->moment(user_.stream())));
    finish(queue_->copy({Block{user_.memory(), window_.data(), checked_bytes}}));
    for (std::size_t i = 0; i < checked_bytes; ++i) expect(i, std::byte{last});
  }

 private:
  static std::byte pattern(std::size_t index) {
    return static_cast<std::byte>(index * 2654435761U >> 13);
  }
  void fill_window() {
    for (std::size_t i = 0; i < checked_bytes; ++i) window_[i] = pattern(i);
  }
  void finish(const Mark& mark) const {
    if (!mark.wait(deadline_)) throw Error(Code::timeout, "is not over in time");
  }
  void expect(std::size_t index, std::byte wanted) const {
    if (window_[index] == wanted) return;
    throw Error(Code::failed,
                fmt::format("byte {} is {:#04x} and should be {:#04x}", index,
                            static_cast<int>(window_[index]), static_cast<int>(wanted)));
  }

  const Deadline deadline_;
  User user_;
  std::vector<std::byte> window_ = std::vector<std::byte>(checked_bytes);
  const std::unique_ptr<device::Device> device_;
  const std::shared_ptr<const Pin> pin_;
  const std::unique_ptr<Queue> queue_;
};

Status status_of(const auto& call) {
  try {
    call();
    return {};
  } catch (...) {
    return current_exception_status();
  }
}

}  // namespace

std::vector<Check> check_device(const Functions& functions, Id id, Deadline deadline) {
  std::unique_ptr<Checking> checking;
  const Status made =
      status_of([&] { checking = std::make_unique<Checking>(functions, id, deadline); });
  if (!made.ok()) return {{"context", made}};
  std::vector<Check> checks{{"context", {}}};
  const auto add = [&](const char* name, void (Checking::*part)()) {
    checks.push_back({name, status_of([&] { (checking.get()->*part)(); })});
  };
  add("pinned memory", &Checking::pinning);
  add("bytes to and fro", &Checking::bytes);
  add("strides", &Checking::strides);
  add("order after a stream", &Checking::order);
  add("knowledge of a stream", &Checking::knowledge);
  // A copy that is still under way must not lose its memory.
  if (std::ranges::any_of(checks, [](auto& each) { return each.status.code == Code::timeout; })) {
    static_cast<void>(checking.release());
  }
  return checks;
}

}  // namespace tensorbus::device::cuda
