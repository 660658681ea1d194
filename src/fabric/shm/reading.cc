#include "fabric/shm/reading.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "os/process/process.h"

namespace tensorbus::fabric {
namespace {

using Path = ShmRemoteRegion::Path;

// Rows shorter than this cost the kernel more than a second pass over the data costs us.
constexpr std::int64_t shortest_straight_row = 512;

// Less is copied sooner than a thread is there.
constexpr std::int64_t smallest_shared_chunk = std::int64_t{64} << 10;

Reading make_reading(Read read, ShmReading::Cache& cache, device::Copiers& copiers) {
  auto bound = cache.get([&] { return std::make_shared<Bound>(read); }, read);
  return Reading(std::move(read), std::move(bound), &copiers);
}

// Every row of a run, at one of its two ends.
template <typename Add>
void for_rows(const plan::Run& run, Add add) {
  for (std::int64_t plane = 0; plane < run.planes; ++plane) {
    for (std::int64_t row = 0; row < run.rows; ++row) {
      add(run.source + plane * run.source_plane + row * run.source_row,
          run.target + plane * run.target_plane + row * run.target_row);
    }
  }
}

bool moves_long_rows(const plan::Program& program) {
  const bool same_types = std::ranges::all_of(
      program.parts, [](const plan::ProgramPart& part) { return part.source == part.target; });
  return same_types && std::ranges::all_of(program.runs, [&](const plan::Run& run) {
           const auto item = static_cast<std::int64_t>(item_bytes(program.parts[run.part].source));
           return run.rows * run.planes == 1 || run.length * item >= shortest_straight_row;
         });
}

void* remote_pointer(std::uint64_t address, std::int64_t offset) {
  return reinterpret_cast<void*>(address + static_cast<std::uint64_t>(offset));
}

// Only to be read.
TensorMemory source_memory(const ShmRemoteRegion& region) {
  TensorMemory memory;
  for (std::size_t i = 0; i < region.forms().size(); ++i) {
    const std::byte* const mapped = region.mapped()[i];
    memory.elsewhere.push_back(mapped == nullptr);
    memory.first.push_back(mapped != nullptr
                               ? const_cast<std::byte*>(mapped)
                               : static_cast<std::byte*>(remote_pointer(region.address(i), 0)));
  }
  return memory;
}

}  // namespace

ShmReading::ShmReading(Read read, Cache& cache, copy::Crew& crew, device::Copiers& copiers)
    : reading_(make_reading(std::move(read), cache, copiers)), crew_(crew) {
  bool all_mapped = true;
  for (const Source& source : reading_.read().sources) {
    Member& member = members_.emplace_back();
    member.peer = &dynamic_cast<ShmPeer&>(*source.peer);
    member.region = &shm_region(*source.region);
    member.ticket = source.ticket;
    all_mapped = all_mapped && member.region->how() == Path::mapped;
    mapped_.push_back(member.region->mapped());
    const std::int64_t chunk_bytes = reading_.stream().chunk_bytes;
    if (member.region->how() == Path::packed && chunk_bytes > std::int64_t{slot_bytes}) {
      throw Error(Code::invalid_argument, "chunks of " + std::to_string(chunk_bytes) +
                                              " bytes are too large to be packed by their owner");
    }
  }
  Bound& bound = reading_.bound();
  if (all_mapped) {
    way_ = Way::mapped;
  } else if (!reduces() && members_.front().region->how() == Path::process_memory) {
    way_ = moves_long_rows(bound.direct()) ? Way::straight : Way::staged;
    if (way_ == Way::staged) reading_.stage(source_memory(*members_.front().region));
  } else {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const ShmRemoteRegion& region = *members_[i].region;
      if (region.how() == Path::packed) continue;
      members_[i].packer = std::make_unique<Packer>(bound.source(i), source_memory(region));
    }
  }
  const ShmRemoteRegion& first = *members_.front().region;
  if (!reduces() && first.on_device()) blocks_ = reading_.device_blocks();
  if (blocks_ != nullptr) way_ = Way::choosing;
  shares_chunks_ = (way_ == Way::mapped || way_ == Way::straight) && reading_.is_direct() &&
                   reading_.stream().chunk_bytes >= smallest_shared_chunk;
}

pid_t ShmReading::Member::pid() const noexcept {
  return region->lender() != nullptr ? region->lender()->pid() : peer->pid;
}

const os::Fd& ShmReading::Member::pidfd() const noexcept {
  return region->lender() != nullptr ? region->lender()->pidfd() : peer->pidfd;
}

std::string ShmReading::Member::name() const {
  const std::string owner = to_string(peer->identity());
  if (region->lender() == nullptr) return owner;
  return "the worker of " + owner + ", process " + std::to_string(pid()) + ",";
}

ShmReading::~ShmReading() {
  for (Arriving& each : arriving_) {
    each.copies.settle();
    members_.front().peer->peer_device_window.slots[each.slot] = 0;
  }
  for (Member& member : members_) abandon(member);
}

void ShmReading::abandon(Member& member) {
  for (const Asked& asked : std::exchange(member.asked, {})) {
    // An owner that has not answered may still write into its slot.
    if (member.peer->packed.erase(asked.request) > 0) {
      *member.peer->slot_of(asked.request) = 0;
    } else {
      member.peer->abandoned.insert(asked.request);
    }
  }
}

bool ShmReading::has_ended() noexcept {
  return reading_.ended() && std::ranges::all_of(arriving_, [](Arriving& each) noexcept {
           return each.copies.ended();
         });
}

ShmReading::Progress ShmReading::step(std::uint64_t& last_request, std::size_t chunks) {
  const bool shared = shares_chunks_ && crew_.size() > 1;
  if (shared) chunks *= crew_.size();
  const std::size_t end = std::min(reading_.chunk_count(), next_ + chunks);
  if (shared) {
    check_open();
    crew_.run(end - next_, [&](std::size_t at) { copy_chunk(next_ + at); });
    next_ = end;
  }
  for (; next_ < end; ++next_) {
    if (!reading_.ready(next_) || !fetch_chunk(last_request)) return Progress::waiting;
  }
  if (next_ < reading_.chunk_count()) return Progress::more;
  give_back_device_slots();
  if (!arriving_.empty() || !reading_.finished()) return Progress::waiting;
  for (const Member& member : members_) {
    // A pid that ended may have become that of another process, whose memory would have been read.
    if (member.region->how() == Path::process_memory && os::has_ended(member.pidfd())) {
      throw Error(Code::peer_lost, member.name() + " died");
    }
  }
  check_open();
  return Progress::done;
}

void ShmReading::copy_chunk(std::size_t chunk) {
  if (way_ == Way::mapped) {
    reading_.copy(chunk, mapped_);
  } else {
    read_straight(chunk, members_.front());
  }
}

bool ShmReading::fetch_chunk(std::uint64_t& last_request) {
  check_open();
  if (way_ == Way::mapped || way_ == Way::straight) {
    copy_chunk(next_);
  } else if (way_ == Way::staged) {
    reading_.copy_staged(next_, fetch_from(members_.front()));
  } else if (way_ == Way::choosing && !choose_window(members_.front())) {
    return false;
  } else if (way_ == Way::device) {
    return copy_from_window(members_.front(), last_request);
  } else {
    bool all = true;
    for (Member& member : members_) all = fetch(member, last_request) && all;
    if (!all) return false;
    scatter();
  }
  return true;
}

void ShmReading::check_open() const {
  for (const Member& member : members_) {
    if (member.region->still_open(member.ticket)) continue;
    throw Error(Code::withdrawn, to_string(member.peer->identity()) + " took its memory back");
  }
}

void ShmReading::read_straight(std::size_t chunk, const Member& member) {
  TargetSide& targets = reading_.direct();
  const plan::Program& program = targets.program();
  std::vector<iovec> local;
  std::vector<iovec> remote;
  for (const plan::Run& run : program.runs_of(program.chunks[chunk])) {
    const plan::ProgramPart& part = program.parts[run.part];
    const std::size_t bytes = static_cast<std::size_t>(run.length) * item_bytes(part.source);
    const std::byte* const mapped = member.region->mapped()[part.source_tensor];
    for_rows(run, [&](std::int64_t source, std::int64_t target) {
      std::byte* const to = targets.tensors()[part.target_tensor] + target;
      if (mapped != nullptr) {
        std::memcpy(to, mapped + source, bytes);
        return;
      }
      remote.push_back({remote_pointer(member.region->address(part.source_tensor), source), bytes});
      local.push_back({to, bytes});
    });
  }
  read_memory(member, local, remote);
  targets.store(chunk);
}

void ShmReading::gather(Member& member) {
  const plan::Chunk& chunk = member.packer->program().chunks[next_];
  member.buffer.resize(static_cast<std::size_t>(chunk.wire_bytes));
  member.wire = member.buffer;
  member.packer->gather(next_, member.buffer, fetch_from(member), crew_);
}

bool ShmReading::fetch(Member& member, std::uint64_t& last_request) {
  if (member.ready) return true;
  if (member.region->how() == Path::packed) return fetch_packed(member, last_request);
  gather(member);
  member.ready = true;
  return true;
}

void ShmReading::ask(Member& member, std::uint64_t& last_request) {
  ShmPeer& peer = *member.peer;
  const bool to_device = way_ == Way::device;
  std::span<std::uint64_t> slots(peer.slots);
  if (to_device) slots = peer.peer_device_window.slots;
  // Of a reduction one chunk at a time: reads that hold slots of one owner while they wait for
  // another's would wait for each other.
  const std::size_t ahead = reduces() ? 1 : slots.size();
  if (!to_device && !peer.peer_window) return;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (member.asked_chunks >= reading_.chunk_count() || member.asked_chunks >= next_ + ahead) {
      return;
    }
    if (slots[slot] != 0) continue;
    const std::uint64_t request = ++last_request;
    slots[slot] = request;
    const auto named = static_cast<std::uint8_t>(slot + (to_device ? first_device_slot : 0));
    peer.push(ask_message,
              encode(Ask{request, member.region->number(), reading_.read().stream_number,
                         member.ticket, static_cast<std::uint32_t>(member.asked_chunks), named}));
    member.asked.push_back({request, static_cast<std::uint8_t>(slot)});
    ++member.asked_chunks;
  }
}

const ShmPeer::Packed* ShmReading::answer_to(const Member& member) {
  if (member.asked.empty()) return nullptr;
  const auto answer = member.peer->packed.find(member.asked.front().request);
  if (answer == member.peer->packed.end()) return nullptr;
  const ShmPeer::Packed& packed = answer->second;
  if (!packed.status.ok()) {
    throw Error(packed.status.code,
                to_string(member.peer->identity()) + ": " + packed.status.message);
  }
  const plan::Chunk& chunk = reading_.bound().target().chunks[next_];
  if (packed.wire_bytes != static_cast<std::uint64_t>(chunk.wire_bytes)) {
    throw Error(Code::failed, to_string(member.peer->identity()) +
                                  " packs another stream than the one that is read");
  }
  return &packed;
}

bool ShmReading::fetch_packed(Member& member, std::uint64_t& last_request) {
  ask(member, last_request);
  const ShmPeer::Packed* const packed = answer_to(member);
  if (packed == nullptr) return false;
  member.wire = {member.peer->peer_window.data() + member.asked.front().slot * slot_bytes,
                 static_cast<std::size_t>(packed->wire_bytes)};
  if (reduces()) {
    member.buffer.assign(member.wire.begin(), member.wire.end());
    member.wire = member.buffer;
    give_back_slot(member);
  }
  member.ready = true;
  return true;
}

bool ShmReading::choose_window(Member& member) {
  ShmPeer::PeerDeviceWindow& window = member.peer->peer_device_window;
  using State = ShmPeer::PeerDeviceWindow::State;
  if (window.state == State::none) {
    window.state = State::asked;
    window.copier = &blocks_->copier();
    member.peer->push(want_device_window_message,
                      std::move(Encoder().integer(member.region->number())).bytes());
  }
  if (window.state == State::asked || window.is_opening()) return false;
  const bool open = window.memory != nullptr &&
                    window.memory->state() == device::Window::State::ready &&
                    window.copier == &blocks_->copier();
  way_ = open ? Way::device : Way::fetched;
  return true;
}

bool ShmReading::copy_from_window(Member& member, std::uint64_t& last_request) {
  give_back_device_slots();
  ask(member, last_request);
  try {
    if (answer_to(member) == nullptr) return false;
  } catch (const Error& error) {
    if (error.code() != Code::unsupported || next_ > 0) throw;
    // The owner's end of this stream needs the host.
    abandon(member);
    member.asked_chunks = 0;
    way_ = Way::fetched;
    return fetch_chunk(last_request);
  }
  const Asked asked = member.asked.front();
  const std::size_t at = asked.slot * slot_bytes;
  std::byte* const window = member.peer->peer_device_window.memory->data();
  Arriving& arriving = arriving_.emplace_back();
  arriving.slot = asked.slot;
  arriving.copies.add(blocks_->copier().queue().copy(blocks_->of_chunk(next_, window + at)));
  member.asked.pop_front();
  member.peer->packed.erase(asked.request);
  member.region->through_device_window = true;
  return true;
}

// Only what the device has taken from a slot makes room for more.
void ShmReading::give_back_device_slots() {
  while (!arriving_.empty() && arriving_.front().copies.over()) {
    members_.front().peer->peer_device_window.slots[arriving_.front().slot] = 0;
    arriving_.erase(arriving_.begin());
  }
}

void ShmReading::give_back_slot(Member& member) {
  const Asked asked = member.asked.front();
  member.asked.pop_front();
  member.peer->packed.erase(asked.request);
  member.peer->slots[asked.slot] = 0;
}

Fetch ShmReading::fetch_from(const Member& member) const {
  return [this, &member](std::span<const iovec> local, std::span<const iovec> remote) {
    read_memory(member, local, remote);
  };
}

void ShmReading::read_memory(const Member& member, std::span<const iovec> local,
                             std::span<const iovec> remote) const {
  const int failure = os::read_process_memory(member.pid(), local, remote);
  if (failure == 0) return;
  check_open();
  const std::string name = member.name();
  if (failure == ESRCH) throw Error(Code::peer_lost, name + " died");
  std::string message = os::errno_message("cannot read the memory of " + name, failure);
  if (failure == EFAULT) message += "; it was freed after it was exposed";
  throw Error(Code::failed, message);
}

void ShmReading::scatter() {
  std::vector<std::span<const std::byte>> wires;
  for (Member& member : members_) {
    wires.push_back(member.wire);
    member.ready = false;
  }
  reading_.scatter(next_, wires, crew_);
  Member& first = members_.front();
  if (!reduces() && first.region->how() == Path::packed) give_back_slot(first);
}

}  // namespace tensorbus::fabric
