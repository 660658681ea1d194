#include "fabric/shm/conduit.h"

#include "tensorbus/status.h"

namespace tensorbus::fabric {

struct ShmConduit::Layout {
  alignas(64) std::byte rings[2][ring_bytes(ring_capacity)];  // [who writes]
  alignas(64) std::atomic<std::uint64_t> words[2][words_per_half];
  struct alignas(64) Pulse {
    std::atomic<std::uint64_t> beats;
  } pulses[2];
};

namespace {

os::Mapping checked_map(const os::Fd& file, std::size_t size) {
  if (os::checked_memfd_size(file) != size) {
    throw Error(Code::denied, "the memory of a connection has the wrong size");
  }
  return os::map(file, size, true, true);
}

}  // namespace

os::Fd ShmConduit::make_file() { return os::sealed_memfd("tensorbus connection", sizeof(Layout)); }

ShmConduit::ShmConduit(const os::Fd& file, Half half)
    : ShmConduit(checked_map(file, sizeof(Layout)), half) {}

ShmConduit::ShmConduit(os::Mapping memory, Half half) noexcept
    : out(reinterpret_cast<Layout*>(memory.data())->rings[half == Half::connector ? 0 : 1],
          ring_capacity),
      in(reinterpret_cast<Layout*>(memory.data())->rings[half == Half::connector ? 1 : 0],
         ring_capacity),
      memory_(std::move(memory)),
      own_(half == Half::connector ? 0 : 1) {}

ShmConduit::Layout& ShmConduit::layout() const noexcept {
  return *reinterpret_cast<Layout*>(memory_.data());
}

std::atomic<std::uint64_t>& ShmConduit::own_word(std::uint32_t number) const noexcept {
  return layout().words[own_][number];
}
std::atomic<std::uint64_t>& ShmConduit::peer_word(std::uint32_t number) const noexcept {
  return layout().words[1 - own_][number];
}
std::atomic<std::uint64_t>& ShmConduit::own_pulse() const noexcept {
  return layout().pulses[own_].beats;
}
std::atomic<std::uint64_t>& ShmConduit::peer_pulse() const noexcept {
  return layout().pulses[1 - own_].beats;
}

}  // namespace tensorbus::fabric
