// The part of the CUDA driver's binary interface that we call, declared by hand: NVIDIA's header
// may not be shipped, and the build knows no CUDA. tests/device/abi_check.cc compares these
// declarations with a real cuda.h where one is found.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorbus::device::cuda {

using Result = int;                  // CUresult
using Device = int;                  // CUdevice
using Pointer = unsigned long long;  // CUdeviceptr
using Context = struct ContextState*;
using Stream = struct StreamState*;
using Event = struct EventState*;
using HostFunction = void (*)(void*);

inline constexpr Result success = 0;
inline constexpr Result invalid_value = 1;
inline constexpr Result out_of_memory = 2;
inline constexpr Result not_initialized = 3;
inline constexpr Result deinitialized = 4;
inline constexpr Result no_device = 100;
inline constexpr Result invalid_device = 101;
inline constexpr Result invalid_context = 201;
inline constexpr Result map_failed = 205;
inline constexpr Result invalid_handle = 400;
inline constexpr Result not_found = 500;
inline constexpr Result not_ready = 600;
inline constexpr Result illegal_address = 700;
inline constexpr Result launch_timeout = 702;
inline constexpr Result assert_failed = 710;
inline constexpr Result host_memory_already_registered = 712;
inline constexpr Result host_memory_not_registered = 713;
inline constexpr Result hardware_stack_error = 714;
inline constexpr Result launch_failed = 719;
inline constexpr Result not_permitted = 800;
inline constexpr Result not_supported = 801;
inline constexpr Result system_driver_mismatch = 803;
inline constexpr Result capture_unsupported = 900;
inline constexpr Result capture_invalidated = 901;
inline constexpr Result capture_implicit = 906;
inline constexpr Result unknown = 999;

enum MemoryType : unsigned { memory_host = 1, memory_device = 2, memory_array = 3, unified = 4 };

struct Memcpy2D {
  std::size_t src_x, src_y;
  MemoryType src_type;
  const void* src_host;
  Pointer src_device;
  void* src_array;
  std::size_t src_pitch;
  std::size_t dst_x, dst_y;
  MemoryType dst_type;
  void* dst_host;
  Pointer dst_device;
  void* dst_array;
  std::size_t dst_pitch;
  std::size_t width, height;
};

struct Uuid {
  char bytes[16];
};
struct IpcMemHandle {
  char reserved[64];
};

inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_disable_timing = 2;
inline constexpr unsigned event_interprocess = 4;
inline constexpr unsigned ipc_lazy_peer_access = 1;
inline constexpr unsigned register_portable = 1;
inline constexpr unsigned register_read_only = 8;
inline constexpr std::uintptr_t legacy_stream = 1;
inline constexpr std::uintptr_t per_thread_stream = 2;

enum CaptureMode : int { capture_global = 0, capture_thread_local = 1, capture_relaxed = 2 };
enum CaptureStatus : int { capture_none = 0, capture_active = 1, capture_broken = 2 };

enum PointerAttribute : int {
  attribute_context = 1,
  attribute_memory_type = 2,
  attribute_device_pointer = 3,
  attribute_host_pointer = 4,
  attribute_buffer_id = 7,
  attribute_is_managed = 8,
  attribute_device_ordinal = 9,
  attribute_legacy_ipc = 10,
  attribute_range_start = 11,
  attribute_range_size = 12,
  attribute_handle_types = 14,
  attribute_memory_pool = 17,
};
enum DeviceAttribute : int {
  max_pitch = 11,
  unified_addressing = 41,
  compute_major = 75,
  compute_minor = 76,
  host_pointer_for_registered = 91,
  read_only_register = 113,
};

// Each function with its parameters. Names are those that cuGetProcAddress takes: without `_v2`,
// the version that is asked for chooses the signature.
#define TENSORBUS_CUDA_FUNCTIONS(EACH)                                         \
  EACH(cuInit, (unsigned))                                                     \
  EACH(cuDriverGetVersion, (int*))                                             \
  EACH(cuGetErrorName, (Result, const char**))                                 \
  EACH(cuGetErrorString, (Result, const char**))                               \
  EACH(cuDeviceGetCount, (int*))                                               \
  EACH(cuDeviceGet, (Device*, int))                                            \
  EACH(cuDeviceGetName, (char*, int, Device))                                  \
  EACH(cuDeviceGetUuid, (Uuid*, Device))                                       \
  EACH(cuDeviceGetAttribute, (int*, DeviceAttribute, Device))                  \
  EACH(cuDeviceCanAccessPeer, (int*, Device, Device))                          \
  EACH(cuDevicePrimaryCtxRetain, (Context*, Device))                           \
  EACH(cuDevicePrimaryCtxRelease, (Device))                                    \
  EACH(cuDevicePrimaryCtxGetState, (Device, unsigned*, int*))                  \
  EACH(cuCtxPushCurrent, (Context))                                            \
  EACH(cuCtxPopCurrent, (Context*))                                            \
  EACH(cuCtxGetCurrent, (Context*))                                            \
  EACH(cuCtxSetCurrent, (Context))                                             \
  EACH(cuCtxGetDevice, (Device*))                                              \
  EACH(cuCtxSynchronize, ())                                                   \
  EACH(cuThreadExchangeStreamCaptureMode, (CaptureMode*))                      \
  EACH(cuMemGetInfo, (std::size_t*, std::size_t*))                             \
  EACH(cuMemAlloc, (Pointer*, std::size_t))                                    \
  EACH(cuMemFree, (Pointer))                                                   \
  EACH(cuMemGetAddressRange, (Pointer*, std::size_t*, Pointer))                \
  EACH(cuMemHostRegister, (void*, std::size_t, unsigned))                      \
  EACH(cuMemHostUnregister, (void*))                                           \
  EACH(cuPointerGetAttributes, (unsigned, PointerAttribute*, void**, Pointer)) \
  EACH(cuMemcpyAsync, (Pointer, Pointer, std::size_t, Stream))                 \
  EACH(cuMemcpyDtoHAsync, (void*, Pointer, std::size_t, Stream))               \
  EACH(cuMemcpyHtoDAsync, (Pointer, const void*, std::size_t, Stream))         \
  EACH(cuMemcpyDtoDAsync, (Pointer, Pointer, std::size_t, Stream))             \
  EACH(cuMemcpy2DAsync, (const Memcpy2D*, Stream))                             \
  EACH(cuMemsetD8Async, (Pointer, unsigned char, std::size_t, Stream))         \
  EACH(cuStreamCreate, (Stream*, unsigned))                                    \
  EACH(cuStreamDestroy, (Stream))                                              \
  EACH(cuStreamSynchronize, (Stream))                                          \
  EACH(cuStreamQuery, (Stream))                                                \
  EACH(cuStreamWaitEvent, (Stream, Event, unsigned))                           \
  EACH(cuStreamIsCapturing, (Stream, CaptureStatus*))                          \
  EACH(cuLaunchHostFunc, (Stream, HostFunction, void*))                        \
  EACH(cuEventCreate, (Event*, unsigned))                                      \
  EACH(cuEventDestroy, (Event))                                                \
  EACH(cuEventRecord, (Event, Stream))                                         \
  EACH(cuEventQuery, (Event))                                                  \
  EACH(cuEventSynchronize, (Event))                                            \
  EACH(cuIpcGetMemHandle, (IpcMemHandle*, Pointer))                            \
  EACH(cuIpcOpenMemHandle, (Pointer*, IpcMemHandle, unsigned))                 \
  EACH(cuIpcCloseMemHandle, (Pointer))

struct Functions {
#define TENSORBUS_DECLARE(name, parameters) Result(*name) parameters = nullptr;
  TENSORBUS_CUDA_FUNCTIONS(TENSORBUS_DECLARE)
#undef TENSORBUS_DECLARE
};

}  // namespace tensorbus::device::cuda
