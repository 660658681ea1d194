// Device memory of another process. A handle says where that process keeps the memory's file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "driver.h"

namespace tensorbus::device::cuda {
namespace {

struct Handle {
  std::uint64_t magic;
  pid_t pid;
  int file;
  std::uint64_t inode;
  std::uint64_t bytes;
  std::uint64_t id;
  int device;
};
static_assert(sizeof(Handle) <= sizeof(IpcMemHandle));

constexpr std::uint64_t our_magic = 0x53544e44494e3031;

// The file, if it is still the one that the handle was made for; -1.
int file_of(const Handle& handle) {
  const std::string path =
      "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return -1;
  struct stat found {};
  if (::fstat(file, &found) == 0 && found.st_ino == handle.inode) return file;
  ::close(file);
  return -1;
}

Result open_new(const IpcMemHandle& given, const Handle& handle, Pointer* result) {
  const int file = file_of(handle);
  if (file < 0) return invalid_handle;
  Block block;
  block.bytes = handle.bytes;
  block.file = file;
  block.device = handle.device;
  block.id = handle.id;
  block.handle = given;
  return driver().memory.import(block, result);
}

}  // namespace

// Of the base of an allocation only: an inner address is refused, which some drivers allow.
STANDIN_API cuIpcGetMemHandle(IpcMemHandle* result, Pointer pointer) {
  return with_context("cuIpcGetMemHandle", [&](ContextState&) {
    const std::lock_guard lock(driver().mutex);
    const Block* block = driver().memory.find(pointer);
    if (block == nullptr || block->base != pointer || block->imported()) return invalid_value;
    struct stat file {};
    ::fstat(block->file, &file);
    const Handle handle{our_magic,    ::getpid(), block->file,  file.st_ino,
                        block->bytes, block->id,  block->device};
    *result = {};
    std::memcpy(result->reserved, &handle, sizeof handle);
    return success;
  });
}

STANDIN_API cuIpcOpenMemHandle_v2(Pointer* result, IpcMemHandle given, unsigned flags) {
  return with_context("cuIpcOpenMemHandle", [&](ContextState&) {
    Handle handle;
    std::memcpy(&handle, given.reserved, sizeof handle);
    if (flags != ipc_lazy_peer_access) return invalid_value;
    if (handle.magic != our_magic) return invalid_handle;
    if (handle.pid == ::getpid() && !driver().settings.ipc_self) return invalid_context;
    const std::lock_guard lock(driver().mutex);
    if (Block* known = driver().memory.find_import(given)) {
      ++known->opened;
      *result = known->base;
      return success;
    }
    return open_new(given, handle, result);
  });
}

STANDIN_API cuIpcCloseMemHandle(Pointer pointer) {
  return with_context("cuIpcCloseMemHandle", [&](ContextState& context) {
    synchronize(context);
    const std::lock_guard lock(driver().mutex);
    return driver().memory.close_import(pointer);
  });
}

}  // namespace tensorbus::device::cuda
