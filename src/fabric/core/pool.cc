#include "fabric/core/pool.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <new>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "os/io/memory.h"
#include "os/process/fork.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {
namespace {

constexpr std::size_t smallest_block = 64;
constexpr std::size_t first_segment_bytes = std::size_t{1} << 20;  // of those that blocks share

std::size_t round_to_page(std::size_t bytes) {
  return (bytes + os::page_size() - 1) / os::page_size() * os::page_size();
}

// Four sizes per doubling: from 16 KiB on at most a fifth of a block is unused.
std::size_t class_size(std::size_t bytes) {
  bytes = std::max(bytes, smallest_block);
  const std::size_t step = std::max(std::bit_floor(bytes - 1) / 4, smallest_block);
  const std::size_t unit = bytes > os::page_size() ? std::max(step, os::page_size()) : step;
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

struct Pool::State {
  struct Segment {
    std::uint64_t number = 0;
    os::Fd file;
    os::Mapping memory;
    std::size_t lent = 0;   // blocks
    std::size_t fresh = 0;  // from here on nothing was ever lent
    bool adopted = false;
  };
  using Adopted = std::tuple<dev_t, ino_t, bool>;  // the file, and whether we may write

  struct Lent {
    std::size_t size = 0;
    std::size_t holders = 0;  // the one who asked for it, and those who keep it
  };

  explicit State(PoolOptions given) : options(given) {}
  // In a forked child the parent's memory is only forgotten.
  ~State() {
    if (!forked()) return;
    for (auto& [address, segment] : segments) segment.memory.leak();
  }

  bool forked() const noexcept { return os::fork_generation() != generation; }

  Segment& add_segment(std::size_t bytes) REQUIRES(mutex) {
    Segment segment{next_segment++, os::sealed_memfd("tensorbus pool", bytes), {}};
    segment.memory = os::map(segment.file, bytes, true, true);
    std::byte* address = segment.memory.data();
    widen(segment.memory);
    reserved += bytes;
    changes.fetch_add(1, std::memory_order_relaxed);
    return segments.emplace(address, std::move(segment)).first->second;
  }

  void widen(const os::Mapping& memory) noexcept REQUIRES(mutex) {
    const auto first = reinterpret_cast<std::uintptr_t>(memory.data());
    lowest.store(std::min(lowest.load(std::memory_order_relaxed), first),
                 std::memory_order_relaxed);
    end.store(std::max(end.load(std::memory_order_relaxed), first + memory.size()),
              std::memory_order_relaxed);
  }
  // Outside of all segments, as far as can be said without the lock. Whoever asks about memory of a
  // segment was given it after the segment was added.
  bool surely_outside(const std::byte* data) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    return address < lowest.load(std::memory_order_relaxed) ||
           address >= end.load(std::memory_order_relaxed);
  }

  // A segment with room for a shared block that was never lent.
  Segment& open_segment(std::size_t size) REQUIRES(mutex) {
    if (open == nullptr || open->memory.size() - open->fresh < size) {
      while (next_bytes < size) grow();
      open = &add_segment(next_bytes);
      grow();
    }
    return *open;
  }

  // A pool that lends little takes little from the host: many agents may be there.
  void grow() noexcept REQUIRES(mutex) {
    next_bytes = std::min(4 * next_bytes, options.segment_bytes);
  }

  const Segment& segment_numbered(std::uint64_t number) const REQUIRES(mutex) {
    for (const auto& [address, segment] : segments) {
      if (segment.number == number) return segment;
    }
    throw Error(Code::invalid_argument, "the pool has no segment " + std::to_string(number));
  }

  Segment* segment_at(const std::byte* data) REQUIRES(mutex) {
    auto after = segments.upper_bound(const_cast<std::byte*>(data));
    if (after == segments.begin()) return nullptr;
    Segment& segment = std::prev(after)->second;
    return data < segment.memory.data() + segment.memory.size() ? &segment : nullptr;
  }

  // Blocks that share segments have one of four sizes per doubling, others the pages they need.
  std::size_t size_for(std::size_t bytes) const {
    if (bytes > (std::size_t{1} << 60)) throw Error(Code::failed, "there is no such memory");
    return is_large(bytes) ? round_to_page(bytes) : class_size(bytes);
  }
  bool is_large(std::size_t bytes) const noexcept { return bytes > options.segment_bytes / 2; }

  // A block that came back and is not much larger than this, if there is one; its size then.
  std::byte* reuse(std::size_t& size) REQUIRES(mutex) {
    const std::size_t most = is_large(size) ? size + size / 4 : size;
    const auto found = free_blocks.lower_bound(size);
    if (found == free_blocks.end() || found->first > most) return nullptr;
    std::byte* const block = found->second.back();
    found->second.pop_back();
    size = found->first;
    if (found->second.empty()) free_blocks.erase(found);
    return block;
  }

  std::byte* take(std::size_t bytes) {
    std::size_t size = size_for(bytes);
    const Lock lock(mutex);
    std::byte* block = reuse(size);
    if (block != nullptr) {
      ++segment_at(block)->lent;
    } else {
      Segment& segment = is_large(size) ? add_segment(size) : open_segment(aligned(size));
      // Blocks of whole pages start on one.
      if (size >= os::page_size()) segment.fresh = round_to_page(segment.fresh);
      block = segment.memory.data() + segment.fresh;
      segment.fresh += size;
      ++segment.lent;
    }
    lent += size;
    blocks.emplace(block, Lent{size, 1});
    return block;
  }

  // The lent block around this byte.
  std::map<std::byte*, Lent>::iterator block_at(const std::byte* data) REQUIRES(mutex) {
    auto after = blocks.upper_bound(const_cast<std::byte*>(data));
    if (after == blocks.begin()) return blocks.end();
    const auto found = std::prev(after);
    return data < found->first + found->second.size ? found : blocks.end();
  }

  void give_back(std::byte* block) noexcept {
    // The lock may be held for ever in a child, by a thread that it does not have.
    if (forked()) return;
    const Lock lock(mutex);
    const auto found = blocks.find(block);
    if (--found->second.holders > 0) return;
    const std::size_t size = found->second.size;
    blocks.erase(found);
    lent -= size;
    --segment_at(block)->lent;
    free_blocks[size].push_back(block);
  }

  void abandon(std::byte* first, const Adopted& file) noexcept {
    if (forked()) return;
    const Lock lock(mutex);
    changes.fetch_add(1, std::memory_order_relaxed);
    segments.erase(first);
    // Unless the file was adopted again meanwhile.
    const auto known = adopted.find(file);
    if (known != adopted.end() && known->second.expired()) adopted.erase(known);
  }

  // The size with what aligning the start of a block may cost.
  static std::size_t aligned(std::size_t size) {
    return size >= os::page_size() ? size + os::page_size() : size;
  }

  const PoolOptions options;
  const unsigned generation = os::fork_generation();
  std::atomic<std::uintptr_t> lowest{UINTPTR_MAX};  // of all segments that ever were
  std::atomic<std::uintptr_t> end{0};
  std::atomic<std::uint64_t> changes{0};
  mutable Mutex mutex;
  std::map<std::byte*, Segment> segments GUARDED_BY(mutex);  // by address
  std::map<std::byte*, Lent> blocks GUARDED_BY(mutex);       // that are lent, by address
  // By size; no list is empty.
  std::map<std::size_t, std::vector<std::byte*>> free_blocks GUARDED_BY(mutex);
  std::map<Adopted, std::weak_ptr<std::byte>> adopted GUARDED_BY(mutex);
  Segment* open GUARDED_BY(mutex) = nullptr;
  std::uint64_t next_segment GUARDED_BY(mutex) = 1;
  std::size_t next_bytes GUARDED_BY(mutex) = std::min(first_segment_bytes, options.segment_bytes);
  std::size_t reserved GUARDED_BY(mutex) = 0;
  std::size_t lent GUARDED_BY(mutex) = 0;
};

Pool::Pool(PoolOptions options) : state_(std::make_shared<State>(options)) {}

std::shared_ptr<std::byte> Pool::allocate(std::size_t bytes) {
  if (state_->forked()) {
    throw Error(Code::failed,
                "this pool belongs to the process that forked; make a new one in the child");
  }
  return {state_->take(bytes), [state = state_](std::byte* block) { state->give_back(block); }};
}

std::shared_ptr<std::atomic<std::uint64_t>> Pool::allocate_word(std::uint64_t value) {
  const std::shared_ptr<std::byte> block = allocate(sizeof value);
  return {block, new (block.get()) std::atomic<std::uint64_t>(value)};
}

std::shared_ptr<void> Pool::keep(const void* data) {
  if (state_->forked()) return nullptr;
  std::byte* block = nullptr;
  {
    const Lock lock(state_->mutex);
    const auto found = state_->block_at(static_cast<const std::byte*>(data));
    if (found == state_->blocks.end()) return nullptr;
    ++found->second.holders;
    block = found->first;
  }
  return {block, [state = state_](void* kept) { state->give_back(static_cast<std::byte*>(kept)); }};
}

std::optional<Place> Pool::find(const void* data, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(data);
  if (state_->forked() || state_->surely_outside(first)) return std::nullopt;
  const Lock lock(state_->mutex);
  const State::Segment* segment = state_->segment_at(first);
  if (segment == nullptr) return std::nullopt;
  const auto offset = static_cast<std::size_t>(first - segment->memory.data());
  if (bytes > segment->memory.size() - offset) return std::nullopt;
  return Place{segment->number, offset};
}

std::uint64_t Pool::changes() const noexcept {
  return state_->changes.load(std::memory_order_acquire);
}

os::Fd Pool::share(std::uint64_t number) const {
  const Lock lock(state_->mutex);
  return os::reopen_read_only(state_->segment_numbered(number).file);
}

os::Fd Pool::lend(std::uint64_t number) const {
  const Lock lock(state_->mutex);
  return os::duplicate(state_->segment_numbered(number).file.get());
}

std::shared_ptr<std::byte> Pool::adopt(os::Fd file) {
  const std::size_t size = os::checked_memfd_size(file);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) os::throw_errno("fstat");
  const bool writable = (::fcntl(file.get(), F_GETFL) & O_ACCMODE) == O_RDWR;
  const Lock lock(state_->mutex);
  const State::Adopted key{status.st_dev, status.st_ino, writable};
  if (const auto known = state_->adopted.find(key); known != state_->adopted.end()) {
    if (std::shared_ptr<std::byte> again = known->second.lock()) return again;
  }
  os::Mapping memory = os::map(file, size, writable, true);
  std::byte* const first = memory.data();
  state_->widen(memory);
  state_->changes.fetch_add(1, std::memory_order_relaxed);
  state_->segments.emplace(first, State::Segment{state_->next_segment++, std::move(file),
                                                 std::move(memory), 1, size, true});
  std::shared_ptr<std::byte> held(
      first, [state = state_, key](std::byte* at) { state->abandon(at, key); });
  state_->adopted[key] = held;
  return held;
}

bool Pool::has(std::uint64_t number) const {
  const Lock lock(state_->mutex);
  return std::ranges::any_of(state_->segments,
                             [&](const auto& entry) { return entry.second.number == number; });
}

std::size_t Pool::segment_size(std::uint64_t number) const {
  const Lock lock(state_->mutex);
  return state_->segment_numbered(number).memory.size();
}

PoolUse Pool::use() const {
  const Lock lock(state_->mutex);
  const auto own = std::ranges::count_if(state_->segments,
                                         [](const auto& entry) { return !entry.second.adopted; });
  return {static_cast<std::size_t>(own), state_->reserved, state_->lent};
}

void Pool::trim() {
  if (state_->forked()) return;
  const Lock lock(state_->mutex);
  const auto in_unused = [&](std::byte* block) REQUIRES(state_->mutex) {
    return state_->segment_at(block)->lent == 0;
  };
  for (auto& [size, blocks] : state_->free_blocks) std::erase_if(blocks, in_unused);
  std::erase_if(state_->free_blocks, [](const auto& entry) { return entry.second.empty(); });
  if (state_->open != nullptr && state_->open->lent == 0) state_->open = nullptr;
  state_->changes.fetch_add(1, std::memory_order_relaxed);
  std::erase_if(state_->segments, [&](const auto& entry) REQUIRES(state_->mutex) {
    if (entry.second.lent > 0) return false;
    state_->reserved -= entry.second.memory.size();
    return true;
  });
}

}  // namespace tensorbus::fabric

namespace tensorbus {

std::shared_ptr<fabric::Pool> make_pool(std::size_t segment_bytes) {
  return std::make_shared<fabric::Pool>(fabric::PoolOptions{segment_bytes});
}

std::shared_ptr<std::byte> allocate(fabric::Pool& pool, std::size_t bytes) {
  return pool.allocate(bytes);
}

PoolUse use_of(const fabric::Pool& pool) { return pool.use(); }

void trim(fabric::Pool& pool) { pool.trim(); }

}  // namespace tensorbus
