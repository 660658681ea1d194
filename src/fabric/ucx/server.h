// The owner's half: regions, the reads that peers make of regions, words, and memory that peers
// write.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fabric/core/reads.h"
#include "fabric/read/staging.h"
#include "fabric/ucx/connection.h"

namespace tensorbus::fabric::ucx {

// A stream that a region serves, bound to its strides and cut for messages.
struct ServedStream {
  std::int64_t wire_bytes = 0;
  std::int64_t chunk_bytes = 0;
  Packer packer;
};

// Exposed memory, shared by its Region and the reads of it; reads outlive the Region.
struct Exposure {
  std::uint64_t number = 0;
  Forms forms;
  Gate gate;
  TensorMemory memory;
  std::map<std::uint64_t, std::shared_ptr<ServedStream>> streams;
  bool dropped = false;
  // Of tensors on a device every read has a bound stream of its own, which the device may be at.
  std::map<std::uint64_t, plan::Stream> unbound{};
  std::vector<std::weak_ptr<ServedStream>> on_device{};

  // Null if there is none of this number.
  std::shared_ptr<ServedStream> stream(std::uint64_t stream_number);
};

// Peers choose every number in what they send: the server checks all of it, and what is wrong is
// answered or costs the peer its connection.
class Server {
 public:
  // The copiers are borrowed.
  explicit Server(device::Copiers& copiers) : copiers_(copiers) {}

  std::unique_ptr<Region> expose(std::span<const TensorView> tensors, Gate gate,
                                 std::shared_ptr<const Lender> lender);
  Word make_word(Connection& peer, std::uint64_t initial);

  void attach(Connection& peer, std::uint64_t request, std::uint64_t region);
  void ask(const std::shared_ptr<Connection>& peer, std::uint64_t read, const Ask& ask);
  void credit(Connection& peer, std::uint64_t read, std::uint64_t bytes);
  void cancel(const Connection& peer, std::uint64_t read);
  void swap(Connection& peer, std::uint64_t request, const SwapRequest& swap);

  std::uint64_t open_inlet(const Connection& peer, std::span<std::byte> memory);
  void close_inlet(const Connection& peer, std::uint64_t inlet);
  void write(const Connection& peer, std::uint64_t inlet, std::uint64_t offset,
             std::span<const std::byte> bytes);

  // Packs and sends what windows allow, up to about `budget` bytes. True if there is more to do
  // that waits for nobody.
  bool pump(std::size_t budget);
  bool waits_for_device() const noexcept;
  // The connection is over, and its reads, words and inlets with it.
  void forget(const Connection& peer);

 private:
  using ReadKey = std::pair<std::uint64_t, std::uint64_t>;  // our stream number, the peer's read
  struct Serving {
    std::shared_ptr<Connection> peer;
    std::shared_ptr<Exposure> exposure;
    std::shared_ptr<ServedStream> stream;
    std::uint64_t ticket = 0;
    std::size_t next = 0;  // fragment
    std::uint64_t window = 0;
    std::size_t begun = 0;  // fragments that a device has been asked for
    Status failure{};       // of the device
  };

  std::shared_ptr<Exposure> find(std::uint64_t region);
  // Sends one fragment, or the end. True if the read is over.
  bool step(std::uint64_t read, Serving& serving);
  static bool ready(Serving& serving) noexcept;
  // Asks the device for the next fragments. False: the next one has not come.
  static bool look_ahead(Serving& serving) noexcept;

  device::Copiers& copiers_;
  std::uint64_t last_region_ = 0;
  std::map<std::uint64_t, std::weak_ptr<Exposure>> regions_;
  std::map<ReadKey, Serving> servings_;
  ReadKey turn_{};  // the next to be served
  struct Inlets {
    std::map<std::uint64_t, std::span<std::byte>> open;
    std::uint64_t last = 0;
  };
  std::map<std::uint64_t, Inlets> inlets_;  // by our stream number
};

}  // namespace tensorbus::fabric::ucx
