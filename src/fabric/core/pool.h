// Memory that peers can map: blocks in sealed memfds. A block that comes back is kept for the next
// caller.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "os/io/fd.h"
#include "tensorbus/pool.h"

namespace tensorbus::fabric {

// A place in a pool, as peers know it.
struct Place {
  std::uint64_t segment = 0;  // unique in the pool, never used again
  std::uint64_t offset = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

struct PoolOptions {
  // Blocks up to half of this share segments, which grow up to this; larger ones have their own.
  std::size_t segment_bytes = std::size_t{64} << 20;
};

// Thread safe; blocks may outlive the pool. A forked child sees the memory but owns none of it:
// there allocate() throws, and dropping a block does nothing.
class Pool {
 public:
  explicit Pool(PoolOptions options = {});

  // At least this many bytes, aligned to 64 (to pages from 4 KiB on), with whatever they last held.
  // The block comes back when the last copy of the pointer is gone. Error(failed) when memory is
  // full.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);
  std::shared_ptr<std::atomic<std::uint64_t>> allocate_word(std::uint64_t value);

  // Keeps the block that holds this byte from coming back, also after the block's last holder is
  // gone; null if the byte is in no block.
  std::shared_ptr<void> keep(const void* data);

  // Where these bytes lie, if they lie in one segment of this pool.
  std::optional<Place> find(const void* data, std::size_t bytes) const;
  // The memory of a segment for a peer, who can only read that.
  os::Fd share(std::uint64_t segment) const;
  // The memory of a segment for an agent of ours, who writes there, too.
  os::Fd lend(std::uint64_t segment) const;
  // A segment of another process' pool becomes one of this pool: from the segment's first byte,
  // writable if the descriptor is, until the last copy of the pointer is gone. A segment that is
  // adopted twice is there once. Error(denied) if the file is not sealed.
  std::shared_ptr<std::byte> adopt(os::Fd file);
  bool has(std::uint64_t segment) const;
  // How often a segment has come or gone: while the number stays the same, so does every answer of
  // find().
  std::uint64_t changes() const noexcept;
  std::size_t segment_size(std::uint64_t segment) const;

  // Without what was adopted.
  PoolUse use() const;
  // Gives segments that nobody uses back to the operating system.
  void trim();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tensorbus::fabric
