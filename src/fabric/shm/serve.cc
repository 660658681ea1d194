// What peers ask for: tables of regions, and chunks to be packed; and what peers answer.
#include <algorithm>

#include "base/bytes.h"
#include "base/log.h"
#include "fabric/shm/answer.h"
#include "fabric/shm/core.h"

namespace tensorbus::fabric {
namespace {

// Of a table, per packet.
constexpr std::size_t table_part = 32 * 1024;
// A peer that sends more sends nonsense.
constexpr std::size_t largest_table = std::size_t{256} << 20;
// Segments of one peer whose descriptors are kept, to be aliased; `ulimit -n` is often 1024.
constexpr std::size_t most_kept_files = 64;
constexpr std::size_t window_bytes = window_slots * slot_bytes;

ShmRemoteRegion::Otherwise way_into(bool allowed, const ShmPeer& peer, std::string_view table,
                                    os::Fd lender) {
  using Way = ShmRemoteRegion::Path;
  const std::optional<Probe> probe = ShmRemoteRegion::probe_in(table);
  if (!probe) return {peer.memory_readable ? Way::process_memory : Way::packed, nullptr};
  if (!allowed || !lender) return {Way::packed, nullptr};
  try {
    return {Way::process_memory, std::make_shared<Lender>(std::move(lender), *probe)};
  } catch (const Error& error) {
    log::debug("{} packs the memory of its worker for us: {}", to_string(peer.identity()),
               error.what());
    return {Way::packed, nullptr};
  }
}

}  // namespace

void ShmCore::on_attach(const PeerPtr& peer, std::string_view body) {
  Decoder decoder(body);
  const auto request = decoder.integer<std::uint64_t>();
  const auto number = decoder.integer<std::uint64_t>();
  decoder.end();
  const auto found = regions_.find(number);
  if (found == regions_.end()) {
    Encoder encoder;
    encoder.integer(request);
    encoder.string(to_string(address_.identity) + " has no region " + std::to_string(number) +
                   " (any more)");
    return post(peer, packet(PacketKind::no_region, encoder.bytes()));
  }
  const ShmTable table = describe(*found->second, *options_.pool);
  for (const std::uint64_t segment : table.segments) {
    if (!peer->segments_sent.insert(segment).second) continue;
    Encoder encoder;
    encoder.integer(segment);
    post(peer, packet(PacketKind::segment, encoder.bytes()),
         std::make_shared<os::Fd>(options_.pool->share(segment)));
  }
  if (const auto& lender = found->second->memory.lender) {
    Encoder encoder;
    encoder.integer(request);
    post(peer, packet(PacketKind::lender, encoder.bytes()),
         std::make_shared<os::Fd>(os::duplicate(lender->pidfd().get())));
  }
  std::string_view rest = table.bytes;
  do {
    const std::string_view part = rest.substr(0, table_part);
    rest.remove_prefix(part.size());
    Encoder encoder;
    encoder.integer(request).integer(static_cast<std::uint8_t>(rest.empty())).raw(part);
    post(peer, packet(PacketKind::table, encoder.bytes()));
  } while (!rest.empty());
}

void ShmCore::on_segment(const PeerPtr& peer, std::string_view body, std::vector<os::Fd> fds) {
  Decoder decoder(body);
  const auto number = decoder.integer<std::uint64_t>();
  decoder.end();
  if (fds.size() != 1) throw Error(Code::failed, "it sent a segment without memory");
  const std::size_t size = os::checked_memfd_size(fds.front());
  peer->segments.insert_or_assign(
      number, std::make_shared<const ShmSegment>(std::move(fds.front()), size,
                                                 peer->segments.size() < most_kept_files));
}

void ShmCore::take_back_segments(const PeerPtr& peer) {
  for (auto at = peer->segments_sent.begin(); at != peer->segments_sent.end();) {
    if (options_.pool->has(*at)) {
      ++at;
      continue;
    }
    Encoder encoder;
    encoder.integer(*at);
    at = peer->segments_sent.erase(at);
    post(peer, packet(PacketKind::segment_gone, encoder.bytes()));
  }
}

// Regions that use the segment still hold it.
void ShmCore::on_segment_gone(const PeerPtr& peer, std::string_view body) {
  Decoder decoder(body);
  peer->segments.erase(decoder.integer<std::uint64_t>());
  decoder.end();
}

void ShmCore::on_lender(const PeerPtr& peer, std::string_view body, std::vector<os::Fd> fds) {
  Decoder decoder(body);
  const auto found = peer->attaching.find(decoder.integer<std::uint64_t>());
  decoder.end();
  if (fds.size() != 1) throw Error(Code::failed, "it sent a lender without a descriptor");
  if (found != peer->attaching.end()) found->second.lender = std::move(fds.front());
}

void ShmCore::on_table(const PeerPtr& peer, std::string_view body) {
  Decoder decoder(body);
  const auto request = decoder.integer<std::uint64_t>();
  const bool last = decoder.integer<std::uint8_t>() != 0;
  const auto found = peer->attaching.find(request);
  if (found == peer->attaching.end()) return;  // cancelled meanwhile
  found->second.table += decoder.raw(decoder.left());
  if (found->second.table.size() > largest_table) throw Error(Code::failed, "an endless table");
  if (!last) return;
  const OpId id = found->second.id;
  using Way = ShmRemoteRegion::Path;
  try {
    auto region = std::make_shared<ShmRemoteRegion>(
        found->second.table, peer->segments,
        way_into(options_.read_process_memory, *peer, found->second.table,
                 std::move(found->second.lender)));
    if (region->how() == Way::packed && !std::exchange(peer->window_wanted, true)) {
      post(peer, packet(PacketKind::want_window, ""));
    }
    finish(id, {}, 0, std::move(region));
  } catch (...) {
    const Status status = current_exception_status();
    finish(id, {Code::failed, to_string(peer->identity()) + ": " + status.message});
  }
}

void ShmCore::on_no_region(const PeerPtr& peer, std::string_view body) {
  Decoder decoder(body);
  const auto request = decoder.integer<std::uint64_t>();
  const std::string message(decoder.string());
  decoder.end();
  const auto found = peer->attaching.find(request);
  if (found != peer->attaching.end()) finish(found->second.id, {Code::withdrawn, message});
}

void ShmCore::on_want_window(const PeerPtr& peer) {
  if (peer->window) return;
  const os::Fd file = os::sealed_memfd("tensorbus window", window_bytes);
  peer->window = os::map(file, window_bytes, true, true);
  post(peer, packet(PacketKind::window, ""), std::make_shared<os::Fd>(os::reopen_read_only(file)));
}

void ShmCore::on_window(const PeerPtr& peer, std::vector<os::Fd> fds) {
  if (fds.size() != 1 || os::checked_memfd_size(fds.front()) != window_bytes) {
    throw Error(Code::failed, "it sent a window of the wrong size");
  }
  peer->peer_window = os::map(fds.front(), window_bytes, false, true);
  wake_reads(*peer);
}

void ShmCore::on_ask(const PeerPtr& peer, std::string_view body) {
  const Ask ask = decode_ask(body);
  if (ask.slot >= first_device_slot) return on_device_ask(peer, ask);
  if (!peer->window || ask.slot >= window_slots) {
    throw Error(Code::failed, "it asks for a chunk without a window");
  }
  const auto found = regions_.find(ask.region);
  if (found == regions_.end() || !found->second->open(ask.ticket)) {
    return answer(*peer, ask, taken_back());
  }
  ShmExposed& exposed = *found->second;
  try {
    const std::shared_ptr<Packer>& packer = exposed.packer(ask.stream);
    const plan::Program& program = packer->program();
    if (ask.chunk >= program.chunks.size() ||
        program.chunks[ask.chunk].wire_bytes > std::int64_t{slot_bytes}) {
      return answer(*peer, ask, {Code::invalid_argument, "the stream has no such chunk"});
    }
    if (packer->on_device()) {
      asks_.push_back({peer, ask, found->second, packer});
      return;
    }
    packer->gather(ask.chunk, host_slot_of(*peer, ask), *options_.crew);
    answer_packed(*peer, ask, exposed, program);
  } catch (const Error& error) {
    answer(*peer, ask, exposed.gate.still_open(ask.ticket) ? error.status() : taken_back());
  }
}

void ShmCore::on_packed(const PeerPtr& peer, std::string_view body) {
  Decoder decoder(body);
  const auto request = decoder.integer<std::uint64_t>();
  const auto code = decoder.integer<std::uint8_t>();
  std::string message(decoder.string());
  const auto bytes = decoder.integer<std::uint64_t>();
  decoder.end();
  std::uint64_t* const slot = peer->slot_of(request);
  if (slot == nullptr) {
    throw Error(Code::failed, "it answers what nobody asked");
  }
  if (peer->abandoned.erase(request) > 0) {
    *slot = 0;
  } else {
    const bool known = code <= static_cast<std::uint8_t>(Code::withdrawn);
    peer->packed[request] = {{known ? static_cast<Code>(code) : Code::failed, std::move(message)},
                             bytes};
  }
  wake_reads(*peer);
}

void ShmCore::wake_reads(const ShmPeer& peer) {
  for (auto& [id, operation] : operations_) {
    if (uses(operation, peer) && !std::holds_alternative<Attach>(operation.work)) {
      operation.waits = false;
    }
  }
}

}  // namespace tensorbus::fabric
