// Memory as the stand-in has it: device memory that the host can name but not touch, and ranges of
// host memory that are pinned.
//
// Device addresses lie in a mapping without any access, so a dereference crashes; the bytes are in
// memfds that only the stand-in maps. New memory is full of 0xA5, freed memory of 0xFE.
#pragma once

#include <map>

#include "device/cuda/abi.h"

namespace tensorbus::device::cuda {

struct Block {
  Pointer base = 0;
  std::size_t bytes = 0;
  std::byte* shadow = nullptr;  // where the stand-in sees it
  int file = -1;
  Device device = 0;
  std::uint64_t id = 0;
  int opened = 0;         // by IPC: how often; 0: allocated here
  IpcMemHandle handle{};  // that it was opened by

  bool imported() const { return opened > 0; }
};

class DeviceMemory {
 public:
  // Reserves the addresses; false if there are none.
  bool reserve();
  bool has(Pointer address) const;

  Result allocate(Pointer* result, std::size_t bytes, Device device);
  Result free(Pointer base);
  // Gives a file that another process has made an address of our own.
  Result import(Block block, Pointer* result);
  Result close_import(Pointer base);
  // The block that an address lies in; null: none.
  Block* find(Pointer address);
  Block* find_import(const IpcMemHandle& handle);
  // Where the stand-in sees a range; null unless all of it lies in one block.
  std::byte* shadow(Pointer address, std::size_t bytes);

  std::size_t used(Device device) const;
  std::size_t count() const { return blocks_.size(); }
  void clear();

 private:
  Result place(Block block, Pointer* result);
  static void drop(const Block& block);

  Pointer window_ = 0;
  Pointer next_ = 0;
  std::uint64_t last_id_ = 0;
  std::map<Pointer, Block> blocks_;
};

class PinnedMemory {
 public:
  Result add(void* data, std::size_t bytes, unsigned flags);
  Result remove(void* data);
  bool has(const void* data, std::size_t bytes) const;
  std::size_t count() const { return ranges_.size(); }
  void clear() { ranges_.clear(); }

 private:
  std::map<std::uintptr_t, std::size_t> ranges_;
};

}  // namespace tensorbus::device::cuda
