// The copies that a caller can ask for.
#include <cstring>

#include "copying.h"

namespace tensorbus::device::cuda {
namespace {

constexpr std::size_t longest_pitch = 0x7fffffff;

bool on_device(Pointer pointer) {
  const std::lock_guard lock(driver().mutex);
  return driver().memory.has(pointer);
}

// A side of a 2D copy, with what is left out filled in.
struct Side {
  Pointer pointer;
  std::size_t pitch;
};

Result side_of(MemoryType type, const void* host, Pointer device, std::size_t x, std::size_t y,
               std::size_t given_pitch, std::size_t width, Side& side) {
  const std::size_t pitch = given_pitch != 0 ? given_pitch : x + width;
  if (pitch < x + width || pitch > longest_pitch) return invalid_value;
  const Pointer base = type == memory_host ? reinterpret_cast<Pointer>(host) : device;
  if (type == memory_device && !on_device(base)) return invalid_value;
  side = {base + y * pitch + x, pitch};
  return success;
}

}  // namespace

STANDIN_API cuMemcpyAsync(Pointer to, Pointer from, std::size_t bytes, Stream stream) {
  return with_context("cuMemcpyAsync", [&](ContextState& context) {
    return copy(context, stream, one_row(to, from, bytes));
  });
}

STANDIN_API cuMemcpyDtoHAsync_v2(void* to, Pointer from, std::size_t bytes, Stream stream) {
  return with_context("cuMemcpyDtoHAsync", [&](ContextState& context) {
    if (!on_device(from)) return invalid_value;
    return copy(context, stream, one_row(reinterpret_cast<Pointer>(to), from, bytes));
  });
}

STANDIN_API cuMemcpyHtoDAsync_v2(Pointer to, const void* from, std::size_t bytes, Stream stream) {
  return with_context("cuMemcpyHtoDAsync", [&](ContextState& context) {
    if (!on_device(to)) return invalid_value;
    return copy(context, stream, one_row(to, reinterpret_cast<Pointer>(from), bytes));
  });
}

STANDIN_API cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, std::size_t bytes, Stream stream) {
  return with_context("cuMemcpyDtoDAsync", [&](ContextState& context) {
    if (!on_device(to) || !on_device(from)) return invalid_value;
    return copy(context, stream, one_row(to, from, bytes));
  });
}

STANDIN_API cuMemcpy2DAsync_v2(const Memcpy2D* given, Stream stream) {
  return with_context("cuMemcpy2DAsync", [&](ContextState& context) {
    const Memcpy2D& asked = *given;
    Side from{};
    Side to{};
    if (const Result refusal =
            side_of(asked.src_type, asked.src_host, asked.src_device, asked.src_x, asked.src_y,
                    asked.src_pitch, asked.width, from)) {
      return refusal;
    }
    if (const Result refusal =
            side_of(asked.dst_type, asked.dst_host, asked.dst_device, asked.dst_x, asked.dst_y,
                    asked.dst_pitch, asked.width, to)) {
      return refusal;
    }
    return copy(context, stream,
                {from.pointer, from.pitch, to.pointer, to.pitch, asked.width, asked.height});
  });
}

STANDIN_API cuMemcpy(Pointer to, Pointer from, std::size_t bytes) {
  return with_context("cuMemcpy", [&](ContextState& context) {
    if (const Result refusal = copy(context, nullptr, one_row(to, from, bytes))) return refusal;
    context.legacy->lane->last()->wait();
    return context.sticky.load();
  });
}

STANDIN_API cuMemsetD8Async(Pointer to, unsigned char value, std::size_t bytes, Stream handle) {
  return with_context("cuMemsetD8Async", [&](ContextState& context) {
    StreamState* stream = stream_of(context, handle);
    if (stream == nullptr) return invalid_handle;
    std::byte* shadow = [&] {
      const std::lock_guard lock(driver().mutex);
      return driver().memory.shadow(to, bytes);
    }();
    if (shadow == nullptr) return invalid_value;
    enqueue(*stream, [=](Dice&) { std::memset(shadow, value, bytes); });
    return success;
  });
}

}  // namespace tensorbus::device::cuda
