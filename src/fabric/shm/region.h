// Regions in shared or private memory of this host: at their owner, and as a peer sees them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "copy/execute.h"
#include "fabric/core/pool.h"
#include "fabric/core/region.h"
#include "fabric/read/device_blocks.h"
#include "fabric/read/staging.h"
#include "os/io/memory.h"

namespace tensorbus::fabric {

// What an owner keeps of a region. `alive` holds the region's number until the region is dropped:
// numbers are never used again, so a reader who checks `alive` after reading knows that the region
// was there all the time, even if the word has since gone to another region.
struct ShmExposed {
  std::uint64_t number = 0;
  Forms forms;
  TensorMemory memory;
  std::shared_ptr<std::atomic<std::uint64_t>> alive;
  Gate gate;
  std::map<std::uint64_t, plan::Stream> streams;
  // Compiled when first asked for.
  std::map<std::uint64_t, std::shared_ptr<Packer>> packers;
  std::map<std::uint64_t, std::shared_ptr<const DeviceBlocks>> blocks{};

  bool open(std::uint64_t ticket) const noexcept {
    return alive->load(std::memory_order_relaxed) == number && gate.open(ticket);
  }
  // Error(invalid_argument) if no stream has this number.
  const std::shared_ptr<Packer>& packer(std::uint64_t stream);
  // The same for a window in device memory; null if it cannot pass through one.
  const std::shared_ptr<const DeviceBlocks>& device_blocks(std::uint64_t stream);

 private:
  plan::Program compiled(std::uint64_t stream) const;
};

// What a peer is told: forms, places and addresses. `segments` are the segments that the peer must
// have mapped; the addresses are the lender's if there is one, and 0 on a device: what lies there
// its owner packs.
struct ShmTable {
  std::string bytes;
  std::set<std::uint64_t> segments;
};
ShmTable describe(const ShmExposed& exposed, const Pool& pool);

// A segment of a peer's pool. Used by the thread that polls.
class ShmSegment {
 public:
  // Without `keep_file` the segment is mapped now, and cannot be aliased.
  ShmSegment(os::Fd file, std::size_t size, bool keep_file);

  std::size_t size() const noexcept { return size_; }
  // The segment is mapped when somebody first looks: a segment that is only aliased never is.
  const std::byte* data() const;
  // For a reader of all of this part: the part's pages are made ready together. Other pages of the
  // segment may be of tensors that are read elsewhere, or of none.
  const std::byte* data(std::size_t begin, std::size_t end) const;
  // A part, from a page on, for this process alone. Needs the file.
  os::Mapping alias(std::size_t begin, std::size_t end) const;
  bool can_alias() const noexcept { return static_cast<bool>(file_); }

 private:
  os::Fd file_;
  std::size_t size_ = 0;
  mutable os::Mapping memory_;
};
using Segments = std::map<std::uint64_t, std::shared_ptr<const ShmSegment>>;

class ShmRemoteRegion final : public RemoteRegion {
 public:
  enum class Path { mapped, process_memory, packed };

  // How to read the memory that is not in segments.
  struct Otherwise {
    Path path = Path::packed;
    // The process whose memory that is; null: the owner's.
    std::shared_ptr<const Lender> lender;
  };
  // From describe(), checked against the segments that the owner sent: Error(failed) if anything
  // leads outside of them.
  ShmRemoteRegion(std::string_view table, const Segments& segments, Otherwise otherwise);
  // Of a table: where the lender can be probed, if there is one.
  static std::optional<Probe> probe_in(std::string_view table);

  std::uint64_t number() const noexcept override { return number_; }
  const Forms& forms() const noexcept override { return forms_; }
  std::string_view path() const noexcept override;
  std::string_view path_to_device() const noexcept override {
    return through_device_window ? "device window" : "staged";
  }
  // Reads to a device have gone that way. Used by the thread that polls.
  mutable bool through_device_window = false;

  Path how() const noexcept { return how_; }
  bool on_device() const noexcept { return on_device_; }
  copy::Sources mapped() const;
  std::optional<Alias> alias() const override;
  // In the address space of the lender or of the owner.
  std::uint64_t address(std::size_t tensor) const noexcept { return addresses_[tensor]; }
  const Lender* lender() const noexcept { return lender_.get(); }

  // After the last byte was read: the region is there and the gate has not passed the ticket.
  bool still_open(std::uint64_t ticket) const noexcept {
    std::atomic_thread_fence(std::memory_order_acquire);
    return alive_->load(std::memory_order_relaxed) == number_ &&
           gate_->load(std::memory_order_relaxed) <= ticket;
  }

 private:
  std::uint64_t number_ = 0;
  Forms forms_;
  Path how_ = Path::mapped;
  bool on_device_ = false;
  struct Spot {
    std::shared_ptr<const ShmSegment> segment;  // null: not in one
    std::uint64_t offset = 0;
  };
  std::vector<Spot> spots_;  // by position
  mutable std::vector<const std::byte*> mapped_;
  std::vector<std::uint64_t> addresses_;
  std::shared_ptr<const Lender> lender_;
  const std::atomic<std::uint64_t>* alive_ = nullptr;
  const std::atomic<std::uint64_t>* gate_ = nullptr;
  std::shared_ptr<const ShmSegment> words_[2];  // that hold the two
};

// Error(invalid_argument) for a region of another fabric.
const ShmRemoteRegion& shm_region(const RemoteRegion& region);

}  // namespace tensorbus::fabric
