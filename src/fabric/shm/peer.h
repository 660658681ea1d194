// A connection to a process of this host, from its first packet to its end.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fabric/core/fabric.h"
#include "fabric/shm/conduit.h"
#include "fabric/shm/handshake.h"
#include "fabric/shm/region.h"
#include "os/io/fd.h"
#include "os/io/poll.h"
#include "os/net/unix_socket.h"

namespace tensorbus::fabric {

// The first byte of a ring message is its kind.
inline constexpr std::uint8_t user_message = 0;
inline constexpr std::uint8_t ask_message = 1;
inline constexpr std::uint8_t packed_message = 2;
inline constexpr std::uint8_t inlet_message =
    3;  // here the packet with that inlet's memory belongs
inline constexpr std::uint8_t want_device_window_message = 4;
inline constexpr std::uint8_t device_window_message = 5;

// Chunks of memory that the reader can neither map nor read are packed into a window of the
// owner's, by slots that the reader names.
inline constexpr std::size_t window_slots = 2;
inline constexpr std::size_t slot_bytes = static_cast<std::size_t>(plan::default_chunk_bytes);

// What goes from device to device passes through a window of the owner's in device memory instead,
// if both can have one. Its slots are numbered behind those of the host's.
inline constexpr std::uint8_t first_device_slot = 128;
inline constexpr std::size_t device_slots = 16;
inline constexpr std::size_t device_window_bytes = device_slots * slot_bytes;

// "Pack this chunk into this slot", and the answer.
struct Ask {
  std::uint64_t request = 0;
  std::uint64_t region = 0;
  std::uint64_t stream = 0;
  std::uint64_t ticket = 0;
  std::uint32_t chunk = 0;
  std::uint8_t slot = 0;
};
std::string encode(const Ask& ask);
Ask decode_ask(std::string_view bytes);

// State and memory only; ShmFabric decides. Closing a peer closes everything that the peer holds.
class ShmPeer final : public Peer {
 public:
  enum class Stage {
    knocking,    // connector: the other's backlog is full
    greeting,    // acceptor: waits for a hello
    proving,     // acceptor: waits for a proof
    challenged,  // connector: waits for the challenge
    accepting,   // both: waits for the other's doorbell, the connector also for its proof
    up,
    lost,
  };

  ShmPeer(std::uint64_t serial, Stage stage, Identity identity, os::Fd socket, Deadline deadline);
  ~ShmPeer() override;

  const Identity& identity() const noexcept override { return identity_; }
  bool up() const noexcept override { return stage == Stage::up; }

  void set_identity(Identity identity) { identity_ = std::move(identity); }
  const os::Fd& socket() const noexcept { return socket_; }
  // For a peer that had no socket.
  void set_socket(os::Fd socket);
  // Ends the connection for the other side too, whoever else has the socket.
  void close() noexcept;

  // In order after what already waits. False: the other side is gone.
  bool post(std::string bytes, std::shared_ptr<os::Fd> fd = nullptr);
  bool flush();
  bool has_unsent() const noexcept { return !outbox_.empty(); }

  // Through the ring, or later when the ring is full.
  void push(std::uint8_t kind, std::string body);
  bool push_now(std::uint8_t kind, std::span<const std::byte> body);
  void flush_ring();
  bool ring_is_behind() const noexcept { return !ring_outbox_.empty(); }
  void ring_doorbell() noexcept;

  const std::uint64_t serial;
  const Fabric* fabric = nullptr;  // whose it is, while that is there
  Stage stage;
  const Deadline deadline;  // of the handshake

  // Handshake.
  bool connector = false;
  std::string where;
  TimePoint knocks_at = TimePoint::max();
  std::string secret;
  std::string hello;
  std::string challenge;
  std::uint64_t probe = 0;

  pid_t pid = 0;  // as we see it, 0 if we do not
  os::Fd pidfd;
  bool memory_readable = false;  // the probe said so
  std::unique_ptr<ShmConduit> conduit;
  os::Fd doorbell;
  std::uint32_t words_made = 0;
  std::uint64_t last_pulse = 0;
  TimePoint last_sign{};

  // As owner.
  std::uint64_t inlets_opened = 0;
  std::set<std::uint64_t> segments_sent;
  os::Fd window_file;
  os::Mapping window;
  struct DeviceWindow {
    std::shared_ptr<const device::Window> memory;  // null: none was asked for
    bool told = false;                             // the reader knows what has become of it
  };
  DeviceWindow device_window;

  // As writer.
  struct Inlet {
    std::shared_ptr<const os::Mapping> segment;
    std::byte* first = nullptr;
    std::size_t bytes = 0;
  };
  std::map<std::uint64_t, Inlet> inlets;
  std::uint64_t last_inlet = 0;     // whose memory has come
  std::uint64_t awaited_inlet = 0;  // no message is taken before its memory has come
  bool leaves = false;              // only what is in the ring is still taken

  // As reader.
  struct Attaching {
    OpId id{};
    std::string table;
    os::Fd lender;  // the pidfd of whose memory it is, if not the peer's
  };
  Segments segments;
  std::map<std::uint64_t, Attaching> attaching;
  bool window_wanted = false;
  os::Mapping peer_window;
  // The request that has each slot; 0 is free.
  std::uint64_t slots[window_slots] = {};
  struct PeerDeviceWindow {
    enum class State { none, asked, opening, refused } state = State::none;
    device::Copier* copier = nullptr;  // of who has asked, and reads through it
    std::shared_ptr<const device::Window> memory;
    std::uint64_t slots[device_slots] = {};

    bool is_opening() const noexcept {
      return memory != nullptr && memory->state() == device::Window::State::asked_for;
    }
  };
  PeerDeviceWindow peer_device_window;
  // Where the request has its slot; null if it has none.
  std::uint64_t* slot_of(std::uint64_t request) noexcept;
  struct Packed {
    Status status;
    std::uint64_t wire_bytes = 0;
  };
  std::map<std::uint64_t, Packed> packed;  // answers that were not yet fetched, by request
  std::set<std::uint64_t> abandoned;       // requests whose answer nobody waits for

 private:
  struct Outgoing {
    std::string bytes;
    std::shared_ptr<os::Fd> fd;
  };

  Identity identity_;
  os::Fd socket_;
  std::deque<Outgoing> outbox_;
  std::deque<RingMessage> ring_outbox_;
};

}  // namespace tensorbus::fabric
