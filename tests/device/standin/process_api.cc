// The process, its devices and their contexts.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "driver.h"

namespace tensorbus::device::cuda {
namespace {

struct ErrorName {
  Result code;
  const char* name;
  const char* text;
};

constexpr ErrorName error_names[] = {
    {success, "CUDA_SUCCESS", "no error"},
    {invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {deinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {map_failed, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    {illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {launch_timeout, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {assert_failed, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {host_memory_already_registered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {host_memory_not_registered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {not_supported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {unknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorName* find_error(Result code) {
  for (const ErrorName& known : error_names) {
    if (known.code == code) return &known;
  }
  return nullptr;
}

// The context of a device; null: no such device.
ContextState* context_of(Device device) {
  const auto& contexts = driver().contexts;
  const bool known = device >= 0 && static_cast<std::size_t>(device) < contexts.size();
  return known ? contexts[static_cast<std::size_t>(device)] : nullptr;
}

void end_with_the_process() {
  if (driver().initialised_by != ::getpid()) return;
  const std::lock_guard lock(driver().mutex);
  driver().ended = true;
}

}  // namespace

STANDIN_API cuInit(unsigned flags) {
  Driver& all = driver();
  const std::lock_guard lock(all.mutex);
  if (const Result failure = injected(all.settings, "cuInit", ++all.calls["cuInit"])) {
    return failure;
  }
  if (flags != 0) return invalid_value;
  if (all.ended) return deinitialized;
  if (all.initialised_by == ::getpid()) return success;
  if (all.initialised_by != 0) return not_initialized;  // forked after cuInit
  if (all.settings.devices == 0) return no_device;
  if (!all.memory.reserve()) return out_of_memory;
  for (Device device = 0; device < all.settings.devices; ++device) {
    all.contexts.push_back(new ContextState);
    all.contexts.back()->device = device;
  }
  all.initialised_by = ::getpid();
  std::atexit(end_with_the_process);
  return success;
}

// Works before cuInit, and for who cannot have it.
STANDIN_API cuDriverGetVersion(int* version) {
  Driver& all = driver();
  const std::lock_guard lock(all.mutex);
  *version = static_cast<int>(all.settings.version);
  return injected(all.settings, "cuDriverGetVersion", ++all.calls["cuDriverGetVersion"]);
}

STANDIN_API cuGetErrorName(Result code, const char** text) {
  const ErrorName* known = find_error(code);
  *text = known == nullptr ? nullptr : known->name;
  return known == nullptr ? invalid_value : success;
}

STANDIN_API cuGetErrorString(Result code, const char** text) {
  const ErrorName* known = find_error(code);
  *text = known == nullptr ? nullptr : known->text;
  return known == nullptr ? invalid_value : success;
}

STANDIN_API cuDeviceGetCount(int* count) {
  return with_driver("cuDeviceGetCount", [&] {
    *count = static_cast<int>(driver().contexts.size());
    return success;
  });
}

STANDIN_API cuDeviceGet(Device* device, int ordinal) {
  return with_driver("cuDeviceGet", [&] {
    if (context_of(ordinal) == nullptr) return invalid_device;
    *device = ordinal;
    return success;
  });
}

STANDIN_API cuDeviceGetName(char* name, int length, Device device) {
  return with_driver("cuDeviceGetName", [&] {
    if (context_of(device) == nullptr) return invalid_device;
    std::snprintf(name, static_cast<std::size_t>(length), "stand-in %d (no GPU)", device);
    return success;
  });
}

STANDIN_API cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  return with_driver("cuDeviceGetUuid", [&] {
    if (context_of(device) == nullptr) return invalid_device;
    *uuid = Uuid{"STAND-IN"};
    uuid->bytes[15] = static_cast<char>(device);
    return success;
  });
}

STANDIN_API cuDeviceTotalMem_v2(std::size_t* bytes, Device device) {
  return with_driver("cuDeviceTotalMem", [&] {
    if (context_of(device) == nullptr) return invalid_device;
    *bytes = static_cast<std::size_t>(driver().settings.memory_mb) << 20;
    return success;
  });
}

STANDIN_API cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Device device) {
  return with_driver("cuDeviceGetAttribute", [&] {
    if (context_of(device) == nullptr) return invalid_device;
    switch (static_cast<int>(attribute)) {
      case max_pitch:
        *value = 0x7fffffff;
        break;
      case compute_major:
        *value = 9;
        break;
      case unified_addressing:
      case host_pointer_for_registered:
      case read_only_register:
        *value = 1;
        break;
      default:
        *value = 0;
    }
    return success;
  });
}

STANDIN_API cuDeviceCanAccessPeer(int* can, Device device, Device peer) {
  return with_driver("cuDeviceCanAccessPeer", [&] {
    if (context_of(device) == nullptr || context_of(peer) == nullptr) return invalid_device;
    *can = device != peer && driver().settings.peers ? 1 : 0;
    return success;
  });
}

STANDIN_API cuDevicePrimaryCtxRetain(Context* result, Device device) {
  return with_driver("cuDevicePrimaryCtxRetain", [&] {
    ContextState* context = context_of(device);
    if (context == nullptr) return invalid_device;
    const bool first = [&] {
      const std::lock_guard lock(driver().mutex);
      return context->retained++ == 0;
    }();
    if (first) context->legacy = make_stream(*context, 0);
    *result = context;
    return success;
  });
}

// The last release takes all that the context has with it.
STANDIN_API cuDevicePrimaryCtxRelease_v2(Device device) {
  return with_driver("cuDevicePrimaryCtxRelease", [&] {
    ContextState* context = context_of(device);
    if (context == nullptr) return invalid_device;
    {
      const std::lock_guard lock(driver().mutex);
      if (context->retained == 0) return invalid_context;
      if (--context->retained > 0) return success;
    }
    const auto streams = context->streams;
    for (StreamState* stream : streams) stream->lane->stop();
    for (StreamState* stream : streams) destroy_stream(stream);
    context->legacy = nullptr;
    return success;
  });
}

STANDIN_API cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active) {
  return with_driver("cuDevicePrimaryCtxGetState", [&] {
    const ContextState* context = context_of(device);
    if (context == nullptr) return invalid_device;
    *flags = 0;
    *active = context->retained > 0 ? 1 : 0;
    return success;
  });
}

STANDIN_API cuCtxPushCurrent_v2(Context context) {
  return with_driver("cuCtxPushCurrent", [&] {
    if (context == nullptr || context->retained == 0) return invalid_context;
    pushed().push_back(context);
    return success;
  });
}

STANDIN_API cuCtxPopCurrent_v2(Context* context) {
  return with_driver("cuCtxPopCurrent", [&] {
    if (pushed().empty()) return invalid_context;
    if (context != nullptr) *context = pushed().back();
    pushed().pop_back();
    return success;
  });
}

STANDIN_API cuCtxGetCurrent(Context* context) {
  return with_driver("cuCtxGetCurrent", [&] {
    *context = pushed().empty() ? nullptr : pushed().back();
    return success;
  });
}

STANDIN_API cuCtxSetCurrent(Context context) {
  return with_driver("cuCtxSetCurrent", [&] {
    if (!pushed().empty()) pushed().pop_back();
    if (context != nullptr) pushed().push_back(context);
    return success;
  });
}

STANDIN_API cuCtxGetDevice(Device* device) {
  return with_context("cuCtxGetDevice", [&](ContextState& context) {
    *device = context.device;
    return success;
  });
}

STANDIN_API cuCtxSynchronize() {
  return with_context("cuCtxSynchronize", [&](ContextState& context) {
    if (capture_forbids()) return capture_unsupported;
    synchronize(context);
    return context.sticky.load();
  });
}

STANDIN_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return with_context("cuCtxGetStreamPriorityRange", [&](ContextState&) {
    *least = 0;
    *greatest = -5;
    return success;
  });
}

STANDIN_API cuThreadExchangeStreamCaptureMode(CaptureMode* mode) {
  return with_driver("cuThreadExchangeStreamCaptureMode", [&] {
    std::swap(*mode, capture_mode_of_thread());
    return success;
  });
}

}  // namespace tensorbus::device::cuda
