// The shm fabric itself. One class, four files: fabric.cc has the calls and the loop,
// connect.cc how connections begin and end, serve.cc what peers ask for, inlet.cc
// memory that they write.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "fabric/shm/fabric.h"
#include "fabric/shm/peer.h"
#include "fabric/shm/reading.h"
#include "os/io/poll.h"

namespace tensorbus::fabric {

class ShmCore final : public Fabric {
 public:
  explicit ShmCore(ShmOptions options);
  ~ShmCore() override;

  const Address& address() const noexcept override { return address_; }
  Gate make_gate() override { return Gate(options_.pool->allocate_word(0)); }
  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                 std::shared_ptr<const Lender> lender) override;
  std::shared_ptr<Peer> connect(const Address& remote, const std::string& secret,
                                Deadline deadline) override;
  void disconnect(Peer& peer) override;
  void hand_to(Receiver& receiver) override { receiver_ = &receiver; }
  void send(Peer& peer, std::span<const std::byte> message) override;
  std::uint64_t open_inlet(Peer& peer, std::span<std::byte> memory, const Pool* pool) override;
  void close_inlet(Peer& peer, std::uint64_t inlet) override;
  void write(Peer& peer, std::uint64_t inlet, std::uint64_t offset,
             std::span<const std::byte> bytes) override;
  SharedInlet inlet(Peer& peer, std::uint64_t number) override;
  void attach(Peer& peer, std::uint64_t region, OpId id, Deadline deadline) override;
  void read(Read read, OpId id, Deadline deadline) override;
  std::int64_t bytes_read(OpId id) const noexcept override;
  Word make_word(Peer& peer, std::uint64_t initial) override;
  void swap(const Swap& swap, OpId id, Deadline deadline) override;
  const std::atomic<std::uint64_t>* watch(Peer& peer, std::uint32_t word) override;
  void cancel(OpId id) noexcept override;
  std::span<const Event> poll() override;
  bool arm() override;
  int fd() const noexcept override { return epoll_.get(); }
  TimePoint wake_at() const noexcept override;

  void withdraw(std::uint64_t region);

 private:
  using PeerPtr = std::shared_ptr<ShmPeer>;
  struct Attach {
    PeerPtr peer;
    std::uint64_t request = 0;
  };
  struct Operation {
    std::variant<Attach, std::unique_ptr<ShmReading>, Swap> work;
    Deadline deadline;
    bool cancelled = false;
    bool waits = false;  // for an owner's answer, or for a device
    // How the operation has ended, while a device is still at its memory.
    std::optional<Status> ended{};
  };

  // fabric.cc
  // Error(peer_lost) if the peer is not up, or not ours.
  const ShmPeer& connected(const Peer& peer) const;
  PeerPtr usable(const Peer& peer) const;
  std::atomic<std::uint64_t>& word_of(const Peer& peer, std::uint32_t word) const;
  void start(OpId id, Operation operation);
  void finish(OpId id, Status status, std::uint64_t value = 0,
              std::shared_ptr<const RemoteRegion> region = {});
  // The same for an operation that may have to wait for a device first.
  void end(OpId id, Operation& operation, Status status);
  static bool uses(const Operation& operation, const Peer& peer);
  void step(OpId id, Operation& operation);
  void step_swap(OpId id, const Swap& swap);
  void tell_time();
  void look_at_descriptors();
  void step_operations();
  void take_messages(const PeerPtr& peer);
  void hand_over(const PeerPtr& peer);
  void reuse_bodies() noexcept;
  void feel_pulses();

  // connect.cc
  void watch_descriptor(int fd, std::uint64_t tag, bool writable = false);
  void watch(int fd, std::uint64_t tag, std::uint32_t what);
  void knock(const PeerPtr& peer);
  void say_hello(const PeerPtr& peer);
  void accept_some();
  void welcome(os::Fd socket);
  PeerPtr add_peer(ShmPeer::Stage stage, Identity identity, os::Fd socket, Deadline deadline);
  void on_socket(const PeerPtr& peer);
  void on_packet(const PeerPtr& peer, os::Packet packet);
  void on_hello(const PeerPtr& peer, std::string_view body);
  void on_challenge(const PeerPtr& peer, std::string_view body);
  void on_proof(const PeerPtr& peer, std::string_view proof, std::vector<os::Fd> fds);
  void on_accept(const PeerPtr& peer, std::string_view proof, std::vector<os::Fd> fds);
  void come_up(const PeerPtr& peer);
  void post(const PeerPtr& peer, std::string bytes, std::shared_ptr<os::Fd> fd = nullptr);
  void refuse(const PeerPtr& peer, const Status& why);
  void lose(const PeerPtr& peer, Status reason);
  void lose_after_its_last_words(const PeerPtr& peer, const std::string& what);
  Greeting greeting() const;

  // serve.cc
  void on_attach(const PeerPtr& peer, std::string_view body);
  void on_segment(const PeerPtr& peer, std::string_view body, std::vector<os::Fd> fds);
  void on_lender(const PeerPtr& peer, std::string_view body, std::vector<os::Fd> fds);
  void on_table(const PeerPtr& peer, std::string_view body);
  void take_back_segments(const PeerPtr& peer);
  static void on_segment_gone(const PeerPtr& peer, std::string_view body);
  void on_no_region(const PeerPtr& peer, std::string_view body);
  void on_want_window(const PeerPtr& peer);
  void on_window(const PeerPtr& peer, std::vector<os::Fd> fds);
  void on_ask(const PeerPtr& peer, std::string_view body);
  void on_packed(const PeerPtr& peer, std::string_view body);
  // Reads from this peer have something to do.
  void wake_reads(const ShmPeer& peer);

  // device.cc
  struct WaitingAsk {
    PeerPtr peer;
    Ask ask;
    std::shared_ptr<ShmExposed> exposed;
    std::shared_ptr<Packer> packer;  // null: the chunk goes to a window in device memory
    bool begun = false;
    std::shared_ptr<const device::Window> window{};
    std::shared_ptr<const DeviceBlocks> blocks{};
    device::OpenCopies copies{};  // to the window
  };
  void serve_asks();
  // Whether an ask before this one uses the same scratch.
  bool comes_later(std::size_t index) const;
  // True: the ask is answered.
  bool serve(WaitingAsk& waiting, bool may_begin);
  void on_device_ask(const PeerPtr& peer, const Ask& ask);
  void on_want_device_window(const PeerPtr& peer, std::string_view body);
  void on_device_window(const PeerPtr& peer, std::string_view body);
  void tell_of_device_windows();

  // inlet.cc
  void on_inlet(const PeerPtr& peer, std::string_view body, std::vector<os::Fd> fds);
  void on_inlet_closed(const PeerPtr& peer, std::string_view body);
  // Whether the memory of the inlet that the next messages may speak of has come.
  bool has_awaited_inlet(const PeerPtr& peer);

  ShmOptions options_;
  Address address_;
  os::Fd epoll_;
  os::Fd listener_;
  os::Shortage shortage_{"shm"};
  os::EventFd doorbell_;
  device::Copiers copiers_;                 // used by regions and operations
  std::map<std::uint64_t, PeerPtr> peers_;  // by serial
  std::vector<PeerPtr> polled_;             // the same, as the last poll found them
  bool peers_changed_ = false;
  std::uint64_t last_serial_ = 0;
  std::uint64_t last_request_ = 0;
  std::map<std::uint64_t, std::shared_ptr<ShmExposed>> regions_;
  std::uint64_t last_region_ = 0;
  std::vector<WaitingAsk> asks_;
  bool device_windows_come_ = false;  // peers are still to be told of theirs
  ShmReading::Cache bound_reads_;
  std::map<OpId, Operation> operations_;
  Receiver* receiver_ = nullptr;
  std::vector<Event> posted_;
  std::vector<Event> returned_;
  RingMessage taken_;
  std::vector<std::string> spare_bodies_;  // memory for the next messages
  bool armed_ = false;
  bool handshakes_ = false;  // somebody was not up in the last poll
  bool stirred_ = false;     // a read got on in the last poll
  unsigned polls_ = 0;
  unsigned polls_per_clock_ = 1;
  unsigned next_clock_ = 1;
  TimePoint next_look_{};
  TimePoint last_poll_{};
  TimePoint next_pulse_{};
};

// What the descriptors of devices are watched under: below are the listener, the doorbell and
// peers.
inline constexpr std::uint64_t device_tag = UINT64_MAX;

// Whose coming no descriptor tells.
inline constexpr Duration between_looks_at_windows = std::chrono::microseconds(200);

// A process that is stopped is noticed after this time.
inline constexpr Duration pulse_every = std::chrono::seconds(1);
inline constexpr Duration patience_with_the_silent = std::chrono::milliseconds(5500);

}  // namespace tensorbus::fabric
