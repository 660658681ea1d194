#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <iterator>

namespace tensorbus::device::cuda {
namespace {

// Addresses are never given twice. ThreadSanitizer leaves a process 1.5 TiB of addresses in all, so
// a window of 1 TiB did not always fit.
constexpr std::size_t window_bytes = std::size_t{1} << 38;
constexpr std::size_t alignment = 512;
constexpr int of_new_memory = 0xA5;
constexpr int of_freed_memory = 0xFE;

// Asks without a write: others may be using the memory.
bool is_writable(void* data) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(data) / page * page;
  return ::madvise(reinterpret_cast<void*>(first), page, MADV_POPULATE_WRITE) == 0;
}

}  // namespace

bool DeviceMemory::reserve() {
  if (window_ != 0) return true;
  void* window =
      ::mmap(nullptr, window_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (window == MAP_FAILED) return false;
  window_ = next_ = reinterpret_cast<Pointer>(window);
  return true;
}

bool DeviceMemory::has(Pointer address) const {
  return window_ != 0 && address >= window_ && address - window_ < window_bytes;
}

Result DeviceMemory::allocate(Pointer* result, std::size_t bytes, Device device) {
  Block block;
  block.bytes = bytes;
  block.device = device;
  block.id = ++last_id_;
  block.file = ::memfd_create("stand-in device memory", MFD_CLOEXEC);
  if (block.file < 0) return out_of_memory;
  if (::ftruncate(block.file, static_cast<off_t>(bytes)) != 0) {
    ::close(block.file);
    return out_of_memory;
  }
  if (const Result refusal = place(block, result)) return refusal;
  std::memset(shadow(*result, bytes), of_new_memory, bytes);
  return success;
}

Result DeviceMemory::place(Block block, Pointer* result) {
  const std::size_t taken = (block.bytes / alignment + 2) * alignment;  // neighbours do not touch
  if (taken > window_ + window_bytes - next_) {
    ::close(block.file);
    return out_of_memory;
  }
  void* seen = ::mmap(nullptr, block.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, block.file, 0);
  if (seen == MAP_FAILED) {
    ::close(block.file);
    return map_failed;
  }
  block.shadow = static_cast<std::byte*>(seen);
  block.base = next_;
  next_ += taken;
  *result = block.base;
  blocks_.emplace(block.base, block);
  return success;
}

Result DeviceMemory::free(Pointer base) {
  const auto found = blocks_.find(base);
  if (found == blocks_.end() || found->second.imported()) return invalid_value;
  // Whoever has it open by IPC sees that it is gone.
  std::memset(found->second.shadow, of_freed_memory, found->second.bytes);
  drop(found->second);
  blocks_.erase(found);
  return success;
}

Result DeviceMemory::import(Block block, Pointer* result) {
  block.opened = 1;
  return place(block, result);
}

Result DeviceMemory::close_import(Pointer base) {
  const auto found = blocks_.find(base);
  if (found == blocks_.end() || !found->second.imported()) return invalid_value;
  if (found->second.opened > 1) {
    --found->second.opened;
    return success;
  }
  drop(found->second);
  blocks_.erase(found);
  return success;
}

Block* DeviceMemory::find(Pointer address) {
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  Block& block = std::prev(after)->second;
  return address - block.base < block.bytes ? &block : nullptr;
}

Block* DeviceMemory::find_import(const IpcMemHandle& handle) {
  for (auto& [base, block] : blocks_) {
    if (block.imported() && std::memcmp(&block.handle, &handle, sizeof handle) == 0) return &block;
  }
  return nullptr;
}

std::byte* DeviceMemory::shadow(Pointer address, std::size_t bytes) {
  const Block* block = find(address);
  if (block == nullptr || bytes > block->bytes - (address - block->base)) return nullptr;
  return block->shadow + (address - block->base);
}

std::size_t DeviceMemory::used(Device device) const {
  std::size_t sum = 0;
  for (const auto& [base, block] : blocks_) {
    if (block.device == device && !block.imported()) sum += block.bytes;
  }
  return sum;
}

void DeviceMemory::clear() {
  for (const auto& [base, block] : blocks_) drop(block);
  blocks_.clear();
}

void DeviceMemory::drop(const Block& block) {
  ::munmap(block.shadow, block.bytes);
  ::close(block.file);
}

Result PinnedMemory::add(void* data, std::size_t bytes, unsigned flags) {
  if (data == nullptr || bytes == 0) return invalid_value;
  if ((flags & register_read_only) == 0 && !is_writable(data)) return invalid_value;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto after = ranges_.upper_bound(begin);
  const bool meets_next = after != ranges_.end() && after->first < begin + bytes;
  const bool meets_previous =
      after != ranges_.begin() && std::prev(after)->first + std::prev(after)->second > begin;
  if (meets_next || meets_previous) return host_memory_already_registered;
  ranges_.emplace(begin, bytes);
  return success;
}

Result PinnedMemory::remove(void* data) {
  const bool removed = ranges_.erase(reinterpret_cast<std::uintptr_t>(data)) == 1;
  return removed ? success : host_memory_not_registered;
}

bool PinnedMemory::has(const void* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto after = ranges_.upper_bound(begin);
  if (after == ranges_.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return begin + bytes <= start + size;
}

}  // namespace tensorbus::device::cuda
