// What peers ask for: tables of regions, and chunks to be packed; and what peers answer.
#include <algorithm>

#include "base/bytes.h"
#include "base/log.h"
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

std::string packed_body(std::uint64_t request, const Status& status, std::uint64_t wire_bytes) {
  Encoder encoder;
  encoder.integer(request).integer(static_cast<std::uint8_t>(status.code));
  encoder.string(status.message).integer(wire_bytes);
  return std::move(encoder).bytes();
}

Status taken_back() { return {Code::withdrawn, "it took its memory back"}; }

void answer(ShmPeer& peer, const Ask& ask, const Status& status, std::uint64_t bytes = 0) {
  peer.push(packed_message, packed_body(ask.request, status, bytes));
}

// The gate may be that of another process, which does not wait for this one.
void answer_packed(ShmPeer& peer, const Ask& ask, const ShmExposed& exposed,
                   const plan::Program& program) {
  if (!exposed.gate.still_open(ask.ticket)) return answer(peer, ask, taken_back());
  answer(peer, ask, {}, static_cast<std::uint64_t>(program.chunks[ask.chunk].wire_bytes));
}

std::span<std::byte> slot_of(const ShmPeer& peer, const Ask& ask) {
  return {peer.window.data() + ask.slot * slot_bytes, slot_bytes};
}

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
  for (auto& [id, operation] : operations_) {
    if (uses(operation, *peer) && !std::holds_alternative<Attach>(operation.work)) {
      operation.waits = false;
    }
  }
}

void ShmCore::on_ask(const PeerPtr& peer, std::string_view body) {
  const Ask ask = decode_ask(body);
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
    if (packer->on_device()) return asks_.push_back({peer, ask, found->second, packer});
    packer->gather(ask.chunk, slot_of(*peer, ask), *options_.crew);
    answer_packed(*peer, ask, exposed, program);
  } catch (const Error& error) {
    answer(*peer, ask, exposed.gate.still_open(ask.ticket) ? error.status() : taken_back());
  }
}

void ShmCore::serve_asks() {
  std::erase_if(asks_, [](const WaitingAsk& each) { return !each.peer->up(); });
  std::vector<bool> later;
  for (std::size_t i = 0; i < asks_.size(); ++i) later.push_back(comes_later(i));
  std::size_t index = 0;
  std::erase_if(asks_, [&](WaitingAsk& each) { return serve(each, !later[index++]); });
}

bool ShmCore::comes_later(std::size_t index) const {
  const auto slot_in = [](const WaitingAsk& each) { return each.ask.chunk % each.packer->slots(); };
  const WaitingAsk& own = asks_[index];
  return std::any_of(asks_.begin(), asks_.begin() + static_cast<std::ptrdiff_t>(index),
                     [&](const WaitingAsk& each) {
                       return each.packer == own.packer && slot_in(each) == slot_in(own);
                     });
}

bool ShmCore::serve(WaitingAsk& waiting, bool may_begin) {
  const auto& [peer, ask, exposed, packer, begun] = waiting;
  try {
    if (!begun) {
      if (!may_begin || !packer->ready(ask.chunk)) return false;
      packer->begin(ask.chunk);
      waiting.begun = true;
    }
    if (!packer->ready(ask.chunk)) return false;
    packer->pack(ask.chunk, slot_of(*peer, ask), *options_.crew);
    answer_packed(*peer, ask, *exposed, packer->program());
  } catch (const Error& error) {
    answer(*peer, ask, exposed->gate.still_open(ask.ticket) ? error.status() : taken_back());
  }
  return true;
}

// Whoever drops a region may free its memory then: a device that is at it is waited for, by the
// last who has its packers.
void ShmCore::withdraw(std::uint64_t region) {
  for (const WaitingAsk& each : asks_) {
    if (each.exposed->number == region && each.peer->up())
      answer(*each.peer, each.ask, taken_back());
  }
  std::erase_if(asks_, [&](const WaitingAsk& each) { return each.exposed->number == region; });
  regions_.erase(region);
}

void ShmCore::on_packed(const PeerPtr& peer, std::string_view body) {
  Decoder decoder(body);
  const auto request = decoder.integer<std::uint64_t>();
  const auto code = decoder.integer<std::uint8_t>();
  std::string message(decoder.string());
  const auto bytes = decoder.integer<std::uint64_t>();
  decoder.end();
  std::uint64_t* slot = std::ranges::find(peer->slots, request);
  if (request == 0 || slot == std::end(peer->slots)) {
    throw Error(Code::failed, "it answers what nobody asked");
  }
  if (peer->abandoned.erase(request) > 0) {
    *slot = 0;
  } else {
    const bool known = code <= static_cast<std::uint8_t>(Code::withdrawn);
    peer->packed[request] = {{known ? static_cast<Code>(code) : Code::failed, std::move(message)},
                             bytes};
  }
  for (auto& [id, operation] : operations_) {
    if (uses(operation, *peer) && !std::holds_alternative<Attach>(operation.work)) {
      operation.waits = false;
    }
  }
}

}  // namespace tensorbus::fabric
