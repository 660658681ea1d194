// A read from processes of this host: out of mapped memory in one pass, out of another process'
// private memory, or chunk by chunk as the owner packs them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "fabric/read/reading.h"
#include "fabric/shm/peer.h"
#include "fabric/shm/region.h"

namespace tensorbus::fabric {

class ShmReading {
 public:
  enum class Progress { more, waiting, done };

  using Cache = StreamCache<Bound>;

  // Checks the read: Error(invalid_argument). Crew and copiers are borrowed.
  ShmReading(Read read, Cache& cache, copy::Crew& crew, device::Copiers& copiers);
  ShmReading(const ShmReading&) = delete;
  ShmReading& operator=(const ShmReading&) = delete;
  // Gives the read's window slots back.
  ~ShmReading();

  const Read& read() const noexcept { return reading_.read(); }
  std::int64_t bytes_done() const noexcept { return reading_.bytes_before(next_); }

  // Gets the read on by at most so many chunks for each thread of the crew. Waiting: nothing can be
  // done until an owner answers, or a device. Done: the gates were open after the last byte.
  // Error(withdrawn, peer_lost, failed) ends the read. However the call ends, no thread is at the
  // read's memory; a device may be until has_ended().
  Progress step(std::uint64_t& last_request, std::size_t chunks);
  bool has_ended() noexcept;

 private:
  struct Asked {
    std::uint64_t request = 0;
    std::uint8_t slot = 0;
  };
  struct Member {
    ShmPeer* peer = nullptr;
    const ShmRemoteRegion* region = nullptr;
    std::uint64_t ticket = 0;
    std::unique_ptr<Packer> packer;  // of what its owner does not pack
    std::vector<std::byte> buffer;
    std::span<const std::byte> wire;  // the next chunk, in the buffer or in the window
    bool ready = false;
    std::size_t asked_chunks = 0;
    std::deque<Asked> asked;  // in the order of chunks

    // The process whose memory this member is.
    pid_t pid() const noexcept;
    const os::Fd& pidfd() const noexcept;
    std::string name() const;
  };

  bool reduces() const noexcept { return members_.size() > 1; }
  // Of the ways mapped and straight.
  void copy_chunk(std::size_t chunk);
  // Fetches the next chunk. False: the read has to wait.
  bool fetch_chunk(std::uint64_t& last_request);
  void check_open() const;
  void read_straight(std::size_t chunk, const Member& member);
  // False: the read has to wait.
  bool fetch(Member& member, std::uint64_t& last_request);
  void gather(Member& member);
  bool fetch_packed(Member& member, std::uint64_t& last_request);
  // The answer to the oldest ask, when it has come. Throws the Error that it tells.
  const ShmPeer::Packed* answer_to(const Member& member);
  void give_back_slot(Member& member);
  // Gives up what was asked for.
  void abandon(Member& member);

  // By a window in device memory. False: it is not known yet whether there is one.
  bool choose_window(Member& member);
  bool copy_from_window(Member& member, std::uint64_t& last_request);
  void give_back_device_slots();
  void ask(Member& member, std::uint64_t& last_request);
  Fetch fetch_from(const Member& member) const;
  void read_memory(const Member& member, std::span<const iovec> local,
                   std::span<const iovec> remote) const;
  void scatter();

  Reading reading_;
  copy::Crew& crew_;
  std::vector<Member> members_;
  std::vector<copy::Sources> mapped_;
  enum class Way { mapped, straight, staged, fetched, choosing, device } way_ = Way::fetched;
  bool shares_chunks_ = false;  // chunks need nothing of this object: several threads may copy
  std::size_t next_ = 0;
  std::unique_ptr<const DeviceBlocks> blocks_;  // if the read may go from device to device
  struct Arriving {
    std::uint8_t slot = 0;
    device::OpenCopies copies;
  };
  std::vector<Arriving> arriving_;  // from the window to the targets, in the order of chunks
};

}  // namespace tensorbus::fabric
