// Checksums of what a reader gets from one source, tensor by tensor: the source makes checksums of
// its memory before it offers a round, the reader of its own memory after it has read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bus/channel/command.h"
#include "fabric/core/lender.h"
#include "fabric/read/staging.h"
#include "tensor/view.h"
#include "tensorbus/plan.h"

struct XXH3_state_s;

namespace tensorbus::bus {

// XXH3 over a stream, packed in the order of its parts and in the type of the reader: what both
// ends can make. Works chunk by chunk, so that whoever owns it never takes long.
class Digest {
 public:
  // Bytes for one step of an agent.
  static constexpr std::int64_t at_once = std::int64_t{8} << 20;

  enum class End : std::uint8_t { source, target };

  // `sample` looks at one chunk in sixteen, others in every round. A reduction is looked at member
  // by member. The memory is borrowed, and so are the copiers of those on a device.
  Digest(const plan::Stream& stream, End end, Verify verify, std::span<const TensorView> tensors,
         std::shared_ptr<const fabric::Lender> lender, device::Copiers* copiers);
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  // Whether another reader's checksums would be the same.
  bool serves(const plan::Stream& stream, Verify verify) const;

  void begin(std::int64_t round);
  Verify verify() const noexcept { return verify_; }
  // Works until the digest is done, `budget` bytes are used up, or a device has not copied the next
  // chunk yet; true: it is done. Error as Lender's.
  bool work(std::int64_t& budget);
  // Sleeps until no device is at the memory.
  void settle() noexcept { staging_.settle(); }
  // One sum for each part of the stream, once the digest is done.
  const std::vector<std::uint64_t>& sums() const noexcept { return sums_; }
  std::int64_t round() const noexcept { return round_; }

 private:
  // Looks at about one chunk or, after the last chunk, does what is left to finish. False: a device
  // has to copy first.
  bool step();
  bool is_left_out(std::size_t chunk) const noexcept;
  // Asks devices for the next chunks. Whether the first of them has come.
  bool look_ahead();
  void add(std::size_t index);
  void finish_part();

  const plan::Stream stream_;
  const Verify verify_;
  std::int64_t round_ = 0;
  plan::Program program_;
  fabric::Staging staging_;
  std::vector<std::byte> wire_;
  std::size_t next_chunk_ = 0;
  std::size_t begun_ = 0;  // chunks that a device was asked for
  std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)> state_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace tensorbus::bus
