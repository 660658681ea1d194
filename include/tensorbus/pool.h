// Memory that other processes of this host can map: tensors in it are copied once on their way, by
// whoever reads them. Endpoints, buses and push-pull nodes take a pool in their options; what is
// allocated in it can be exposed, sent and pushed there without another copy.
#pragma once

#include <cstddef>
#include <memory>

#pragma GCC visibility push(default)

namespace tensorbus {

namespace fabric {
class Pool;
}

// Blocks of up to half of `segment_bytes` share segments, which grow up to this; larger ones have
// their own.
std::shared_ptr<fabric::Pool> make_pool(std::size_t segment_bytes = std::size_t{64} << 20);

// At least this many bytes, aligned to 64 (to pages from 4 KiB on), with whatever they last held.
// The block goes back to the pool with the last copy of the pointer, also after the pool itself is
// gone. Thread safe, like all of these. Error(failed) when memory is full, and in a forked child.
std::shared_ptr<std::byte> allocate(fabric::Pool& pool, std::size_t bytes);

struct PoolUse {
  std::size_t segments = 0;
  std::size_t reserved_bytes = 0;  // what the operating system gave
  std::size_t lent_bytes = 0;      // what holders have
};
PoolUse use_of(const fabric::Pool& pool);

// Gives segments that nobody uses back to the operating system.
void trim(fabric::Pool& pool);

}  // namespace tensorbus

#pragma GCC visibility pop
