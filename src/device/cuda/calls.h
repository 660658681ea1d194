// Calls of the driver for one device: an error names the device and the call, and after an error
// that ends the context no call is made.
#pragma once

#include "base/mutex.h"
#include "device/core/device.h"
#include "device/cuda/library.h"

namespace tensorbus::device::cuda {

// Errors after which every call of this process to the device fails: only a new process helps.
bool is_sticky(Result result) noexcept;

class Calls {
 public:
  Calls(const Functions& functions, Id id) : functions_(functions), id_(id) {}

  // Throws Error(failed) unless the call succeeds.
  template <typename... Parameters, typename... Arguments>
  void operator()(Result (*Functions::*function)(Parameters...), Arguments... arguments) {
    const Result result = ask(function, arguments...);
    if (result != success) fail(result, index_of(function));
  }

  // The call's own result, for who knows what to do about it. Throws Error(failed) if the device is
  // dead, or dies of it.
  template <typename... Parameters, typename... Arguments>
  Result ask(Result (*Functions::*function)(Parameters...), Arguments... arguments) {
    refuse_if_dead();
    const Result result = (functions_.*function)(arguments...);
    if (result == deinitialized || is_sticky(result)) die_of(result);
    return result;
  }

  // For calls that put a thread back as it was: such calls are made for a dead device, too, and
  // what they return matters to nobody.
  template <typename... Parameters, typename... Arguments>
  void restore(Result (*Functions::*function)(Parameters...), Arguments... arguments) noexcept {
    (functions_.*function)(arguments...);
  }

  // The device is given up.
  void die(const Status& why);
  Status health() const;
  bool is_dead() const { return !health().ok(); }
  std::string text_of(Result result) const { return describe(functions_, result); }
  Id id() const noexcept { return id_; }

 private:
  template <typename Function>
  std::size_t index_of(Function Functions::*function) const {
    const auto* begin = reinterpret_cast<const char*>(&functions_);
    const auto* found = reinterpret_cast<const char*>(&(functions_.*function));
    return static_cast<std::size_t>(found - begin) / sizeof(Function);
  }
  [[noreturn]] void fail(Result result, std::size_t index) const;
  [[noreturn]] void die_of(Result result);
  void refuse_if_dead() const;

  const Functions functions_;
  const Id id_;
  mutable Mutex mutex_;
  Status death_ GUARDED_BY(mutex_);
};

}  // namespace tensorbus::device::cuda
