// Device memory, pinned memory, and what the driver knows of a pointer.
#include "driver.h"

namespace tensorbus::device::cuda {
namespace {

constexpr unsigned type_unknown = 0;

// False: no such attribute.
bool answer(PointerAttribute attribute, const Block* block, Pointer pointer, void* data) {
  switch (static_cast<int>(attribute)) {
    case attribute_context:
      *static_cast<Context*>(data) =
          block == nullptr ? nullptr : driver().contexts[static_cast<std::size_t>(block->device)];
      return true;
    case attribute_memory_type:
      *static_cast<unsigned*>(data) = block == nullptr ? type_unknown : memory_device;
      return true;
    case attribute_device_pointer:
      *static_cast<Pointer*>(data) = block == nullptr ? 0 : pointer;
      return true;
    case attribute_buffer_id:
      *static_cast<unsigned long long*>(data) = block == nullptr ? 0 : block->id;
      return true;
    case attribute_is_managed:
      *static_cast<unsigned*>(data) = 0;
      return true;
    case attribute_device_ordinal:
      *static_cast<int*>(data) = block == nullptr ? -2 : block->device;
      return true;
    case attribute_legacy_ipc:
      *static_cast<int*>(data) = block != nullptr && !block->imported() ? 1 : 0;
      return true;
    case attribute_range_start:
      *static_cast<Pointer*>(data) = block == nullptr ? 0 : block->base;
      return true;
    case attribute_range_size:
      *static_cast<std::size_t*>(data) = block == nullptr ? 0 : block->bytes;
      return true;
    case attribute_handle_types:
      *static_cast<std::uint64_t*>(data) = 0;
      return true;
    case attribute_host_pointer:
    case attribute_memory_pool:
      *static_cast<void**>(data) = nullptr;
      return true;
    default:
      return false;
  }
}

}  // namespace

STANDIN_API cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return with_context("cuMemGetInfo", [&](ContextState& context) {
    const std::lock_guard lock(driver().mutex);
    *total = static_cast<std::size_t>(driver().settings.memory_mb) << 20;
    *free = *total - driver().memory.used(context.device);
    return success;
  });
}

STANDIN_API cuMemAlloc_v2(Pointer* result, std::size_t bytes) {
  return with_context("cuMemAlloc", [&](ContextState& context) {
    if (capture_forbids()) return capture_unsupported;
    if (bytes == 0) return invalid_value;
    Driver& all = driver();
    const std::lock_guard lock(all.mutex);
    const auto total = static_cast<std::size_t>(all.settings.memory_mb) << 20;
    if (bytes > total - all.memory.used(context.device)) return out_of_memory;
    return all.memory.allocate(result, bytes, context.device);
  });
}

// Waits for the whole context, as the driver's does.
STANDIN_API cuMemFree_v2(Pointer pointer) {
  return with_context("cuMemFree", [&](ContextState& context) {
    if (capture_forbids()) return capture_unsupported;
    synchronize(context);
    const std::lock_guard lock(driver().mutex);
    return driver().memory.free(pointer);
  });
}

STANDIN_API cuMemGetAddressRange_v2(Pointer* base, std::size_t* bytes, Pointer pointer) {
  return with_context("cuMemGetAddressRange", [&](ContextState&) {
    const std::lock_guard lock(driver().mutex);
    const Block* block = driver().memory.find(pointer);
    if (block == nullptr) return not_found;
    if (base != nullptr) *base = block->base;
    if (bytes != nullptr) *bytes = block->bytes;
    return success;
  });
}

STANDIN_API cuMemHostRegister_v2(void* data, std::size_t bytes, unsigned flags) {
  return with_context("cuMemHostRegister", [&](ContextState&) {
    if (capture_forbids()) return capture_unsupported;
    const std::lock_guard lock(driver().mutex);
    return driver().pinned.add(data, bytes, flags);
  });
}

STANDIN_API cuMemHostUnregister(void* data) {
  return with_context("cuMemHostUnregister", [&](ContextState&) {
    const std::lock_guard lock(driver().mutex);
    return driver().pinned.remove(data);
  });
}

// Of a pointer that it does not know the driver says zeros, and success.
STANDIN_API cuPointerGetAttributes(unsigned count, PointerAttribute* attributes, void** data,
                                   Pointer pointer) {
  return with_driver("cuPointerGetAttributes", [&] {
    const std::lock_guard lock(driver().mutex);
    const Block* block = driver().memory.find(pointer);
    for (unsigned i = 0; i < count; ++i) {
      if (!answer(attributes[i], block, pointer, data[i])) return invalid_value;
    }
    return success;
  });
}

STANDIN_API cuPointerGetAttribute(void* data, PointerAttribute attribute, Pointer pointer) {
  return with_driver("cuPointerGetAttribute", [&] {
    const std::lock_guard lock(driver().mutex);
    const Block* block = driver().memory.find(pointer);
    if (block == nullptr) return invalid_value;
    return answer(attribute, block, pointer, data) ? success : invalid_value;
  });
}

}  // namespace tensorbus::device::cuda
