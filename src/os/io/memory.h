// Memory that other processes can map: sealed memfds, and mappings with one owner.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <span>
#include <string>
#include <utility>

#include "os/io/fd.h"

namespace tensorbus::os {

// A mapping of a file, gone with its owner.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping() { reset(); }

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }
  void reset() noexcept;
  // Forgets without unmapping: for a forked child, where others may still look.
  void leak() noexcept { data_ = nullptr; }

 private:
  friend Mapping map(const Fd&, std::size_t, bool, bool);
  friend Mapping map_privately(const Fd&, std::size_t, std::size_t);
  Mapping(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// All of a file from its start. `populate`: page tables are filled now, which costs once what
// page faults would cost one by one.
Mapping map(const Fd& file, std::size_t size, bool writable, bool populate);

// The same for a part of a mapping, to read it. Without effect before Linux 5.14.
void populate(const Mapping& mapping, std::size_t begin, std::size_t end) noexcept;

// A part of a file, from a page on. Writable even if the file is not: a page that is written is
// copied first, and nobody else sees the copy. No page is read before it is touched.
Mapping map_privately(const Fd& file, std::size_t offset, std::size_t size);

// Anonymous memory of fixed size behind a descriptor: every page is there (a full machine is an
// Error(failed) here and never a SIGBUS or an out-of-memory kill later), the memory cannot shrink
// or grow, and nobody can change that. memfd, not shm_open: a killed process cannot unlink a name,
// so every crash would leave a segment behind.
Fd sealed_memfd(const std::string& name, std::size_t size);

// What can still be had without the kernel having to kill somebody: of the machine and of this
// process' control groups. A hint: other processes take memory, too.
std::size_t available_memory();
// Of control groups alone, both versions: `membership` is what /proc/self/cgroup says, `root` where
// groups are mounted. SIZE_MAX without a limit.
std::size_t available_in_groups(std::istream& membership, const std::string& root);

// The same file, for those who may only read: cannot be mapped writable.
Fd reopen_read_only(const Fd& file);

// The size of a memfd from elsewhere. Error(denied) unless the memfd is sealed as ours are: the
// owner of any other can kill a process that maps it.
std::size_t checked_memfd_size(const Fd& file);

std::size_t page_size() noexcept;

}  // namespace tensorbus::os
