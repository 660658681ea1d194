// The shared memory of one connection: a ring each way, the words of each half, and a pulse.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "fabric/shm/ring.h"
#include "os/io/fd.h"
#include "os/io/memory.h"

namespace tensorbus::fabric {

inline constexpr std::size_t ring_capacity = 256 * 1024;
inline constexpr std::uint32_t words_per_half = 8192;

// Both ends can write all of this memory, so nothing in it is believed; the worst a peer can do is
// to break its own connection.
class ShmConduit {
 public:
  enum class Half { connector, acceptor };

  // For the connector, who makes the memory.
  static os::Fd make_file();
  // Error(denied) if the file is not sealed or has another size.
  ShmConduit(const os::Fd& file, Half half);

  RingProducer out;
  RingConsumer in;

  std::atomic<std::uint64_t>& own_word(std::uint32_t number) const noexcept;
  std::atomic<std::uint64_t>& peer_word(std::uint32_t number) const noexcept;
  // A pulse grows while the fabric of its process is polled, and stands still when the process is
  // stopped.
  std::atomic<std::uint64_t>& own_pulse() const noexcept;
  std::atomic<std::uint64_t>& peer_pulse() const noexcept;

 private:
  struct Layout;
  ShmConduit(os::Mapping memory, Half half) noexcept;
  Layout& layout() const noexcept;

  os::Mapping memory_;
  std::size_t own_;  // index of our half
};

}  // namespace tensorbus::fabric
