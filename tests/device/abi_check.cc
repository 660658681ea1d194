// Compiled where NVIDIA's cuda.h is found: our declarations are the real ones, or this is no C++.
#include <cuda.h>  // first: it renames functions to their versions, ours with them

#include <type_traits>

#include "device/cuda/abi.h"

namespace tensorbus::device::cuda {

// One register, or one struct of equal size: pointers are alike to a caller.
template <typename Ours, typename Theirs>
constexpr bool is_passed_alike() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    return true;
  } else {
    return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
           std::is_class_v<Ours> == std::is_class_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct Alike : std::false_type {};
template <typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct Alike<Result (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<sizeof(Result) == sizeof(TheirResult) &&
                         (is_passed_alike<Ours, Theirs>() && ...)> {
};

#define CHECK_FUNCTION(name, parameters) \
  static_assert(Alike<decltype(Functions::name), decltype(&::name)>::value, #name);
TENSORBUS_CUDA_FUNCTIONS(CHECK_FUNCTION)

#define CHECK_FIELD(ours, theirs) \
  static_assert(offsetof(Memcpy2D, ours) == offsetof(CUDA_MEMCPY2D, theirs), #ours);
CHECK_FIELD(src_x, srcXInBytes)
CHECK_FIELD(src_y, srcY)
CHECK_FIELD(src_type, srcMemoryType)
CHECK_FIELD(src_host, srcHost)
CHECK_FIELD(src_device, srcDevice)
CHECK_FIELD(src_array, srcArray)
CHECK_FIELD(src_pitch, srcPitch)
CHECK_FIELD(dst_x, dstXInBytes)
CHECK_FIELD(dst_y, dstY)
CHECK_FIELD(dst_type, dstMemoryType)
CHECK_FIELD(dst_host, dstHost)
CHECK_FIELD(dst_device, dstDevice)
CHECK_FIELD(dst_array, dstArray)
CHECK_FIELD(dst_pitch, dstPitch)
CHECK_FIELD(width, WidthInBytes)
CHECK_FIELD(height, Height)
static_assert(sizeof(Memcpy2D) == sizeof(CUDA_MEMCPY2D));
static_assert(sizeof(IpcMemHandle) == sizeof(CUipcMemHandle) && sizeof(Uuid) == sizeof(CUuuid));

#define CHECK_VALUE(ours, theirs) \
  static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #ours);
CHECK_VALUE(success, CUDA_SUCCESS)
CHECK_VALUE(invalid_value, CUDA_ERROR_INVALID_VALUE)
CHECK_VALUE(out_of_memory, CUDA_ERROR_OUT_OF_MEMORY)
CHECK_VALUE(not_initialized, CUDA_ERROR_NOT_INITIALIZED)
CHECK_VALUE(deinitialized, CUDA_ERROR_DEINITIALIZED)
CHECK_VALUE(no_device, CUDA_ERROR_NO_DEVICE)
CHECK_VALUE(invalid_device, CUDA_ERROR_INVALID_DEVICE)
CHECK_VALUE(invalid_context, CUDA_ERROR_INVALID_CONTEXT)
CHECK_VALUE(map_failed, CUDA_ERROR_MAP_FAILED)
CHECK_VALUE(invalid_handle, CUDA_ERROR_INVALID_HANDLE)
CHECK_VALUE(not_found, CUDA_ERROR_NOT_FOUND)
CHECK_VALUE(not_ready, CUDA_ERROR_NOT_READY)
CHECK_VALUE(illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS)
CHECK_VALUE(launch_timeout, CUDA_ERROR_LAUNCH_TIMEOUT)
CHECK_VALUE(assert_failed, CUDA_ERROR_ASSERT)
CHECK_VALUE(host_memory_already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
CHECK_VALUE(host_memory_not_registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
CHECK_VALUE(hardware_stack_error, CUDA_ERROR_HARDWARE_STACK_ERROR)
CHECK_VALUE(launch_failed, CUDA_ERROR_LAUNCH_FAILED)
CHECK_VALUE(not_permitted, CUDA_ERROR_NOT_PERMITTED)
CHECK_VALUE(not_supported, CUDA_ERROR_NOT_SUPPORTED)
CHECK_VALUE(system_driver_mismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
CHECK_VALUE(capture_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
CHECK_VALUE(capture_invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
CHECK_VALUE(capture_implicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
CHECK_VALUE(unknown, CUDA_ERROR_UNKNOWN)
CHECK_VALUE(memory_host, CU_MEMORYTYPE_HOST)
CHECK_VALUE(memory_device, CU_MEMORYTYPE_DEVICE)
CHECK_VALUE(memory_array, CU_MEMORYTYPE_ARRAY)
CHECK_VALUE(unified, CU_MEMORYTYPE_UNIFIED)
CHECK_VALUE(stream_non_blocking, CU_STREAM_NON_BLOCKING)
CHECK_VALUE(event_disable_timing, CU_EVENT_DISABLE_TIMING)
CHECK_VALUE(event_interprocess, CU_EVENT_INTERPROCESS)
CHECK_VALUE(ipc_lazy_peer_access, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
CHECK_VALUE(register_portable, CU_MEMHOSTREGISTER_PORTABLE)
CHECK_VALUE(register_read_only, CU_MEMHOSTREGISTER_READ_ONLY)
CHECK_VALUE(capture_global, CU_STREAM_CAPTURE_MODE_GLOBAL)
CHECK_VALUE(capture_thread_local, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
CHECK_VALUE(capture_relaxed, CU_STREAM_CAPTURE_MODE_RELAXED)
CHECK_VALUE(capture_none, CU_STREAM_CAPTURE_STATUS_NONE)
CHECK_VALUE(capture_active, CU_STREAM_CAPTURE_STATUS_ACTIVE)
CHECK_VALUE(capture_broken, CU_STREAM_CAPTURE_STATUS_INVALIDATED)
CHECK_VALUE(attribute_context, CU_POINTER_ATTRIBUTE_CONTEXT)
CHECK_VALUE(attribute_memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
CHECK_VALUE(attribute_device_pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
CHECK_VALUE(attribute_host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER)
CHECK_VALUE(attribute_buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID)
CHECK_VALUE(attribute_is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED)
CHECK_VALUE(attribute_device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
CHECK_VALUE(attribute_legacy_ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
CHECK_VALUE(attribute_range_start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
CHECK_VALUE(attribute_range_size, CU_POINTER_ATTRIBUTE_RANGE_SIZE)
CHECK_VALUE(attribute_handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
CHECK_VALUE(attribute_memory_pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
CHECK_VALUE(max_pitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH)
CHECK_VALUE(unified_addressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)
CHECK_VALUE(compute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
CHECK_VALUE(compute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
CHECK_VALUE(host_pointer_for_registered,
            CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)
CHECK_VALUE(read_only_register, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)

}  // namespace tensorbus::device::cuda
