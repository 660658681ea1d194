#include "push_pull/job/partner.h"

#include <algorithm>

namespace tensorbus::push_pull {
namespace {

// Slots share segments of this size. Small: every peer has a segment of its own.
constexpr std::size_t segment_bytes = std::size_t{1} << 20;
// A piece of a long message, without its head.
constexpr std::size_t part_bytes = fabric::max_message_bytes - 64;
constexpr std::size_t longest_message = std::size_t{64} << 20;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

Partner::Partner(fabric::Fabric& transport, std::shared_ptr<fabric::Peer> peer, int group,
                 std::string name)
    : messages_(transport),
      inlets_(transport),
      peer_(std::move(peer)),
      group_(group),
      name_(std::move(name)),
      shares_memory_(transport.address().kind == "shm"),
      slots_(fabric::PoolOptions{segment_bytes}) {}

void Partner::lose(Status reason) {
  if (lost_) return;
  lost_ = std::move(reason);
  outbox_.clear();
}

void Partner::disconnect() {
  if (!lost_) messages_.disconnect(*peer_);
}

void Partner::send(std::string_view message) {
  if (message.size() <= fabric::max_message_bytes) return send_now(message);
  wire::Message part;
  while (!message.empty()) {
    const std::string_view piece = message.substr(0, part_bytes);
    message.remove_prefix(piece.size());
    part.start(wire::Kind::part);
    part.put(static_cast<std::uint8_t>(message.empty()));
    part.put_text(piece);
    send_now(part.bytes());
  }
}

void Partner::send_now(std::string_view message) {
  if (lost_) return;
  if (outbox_.empty()) {
    try {
      return messages_.send(*peer_, bytes_of(message));
    } catch (const Error& error) {
      // A peer that is gone is reported as such by the next poll.
      if (error.code() == Code::peer_lost) return;
      if (error.code() != Code::queue_full) throw;
    }
  }
  outbox_.emplace_back(message);
}

void Partner::flush() {
  try {
    for (; !outbox_.empty(); outbox_.pop_front()) messages_.send(*peer_, bytes_of(outbox_.front()));
  } catch (const Error& error) {
    if (error.code() != Code::queue_full && error.code() != Code::peer_lost) throw;
  }
}

std::optional<std::string> Partner::assemble(std::string_view part) {
  if (part.empty() || parts_.size() + part.size() > longest_message) {
    throw Error(Code::failed, "a message without an end");
  }
  const bool last = part.front() != 0;
  parts_.append(part.substr(1));
  if (!last) return std::nullopt;
  return std::exchange(parts_, {});
}

std::uint64_t Partner::inlet_of(const fabric::Pool& pool, Inlets& inlets, const std::byte* data,
                                const fabric::Place& place) {
  const auto known = inlets.find(place.segment);
  if (known != inlets.end()) return known->second;
  // The whole segment: other memory in the segment need not be opened any more.
  auto* const first = const_cast<std::byte*>(data) - place.offset;
  const std::uint64_t inlet =
      inlets_.open_inlet(*peer_, {first, pool.segment_size(place.segment)}, &pool);
  inlets.emplace(place.segment, inlet);
  return inlet;
}

OwnSlot Partner::make_slot(std::size_t bytes) {
  std::shared_ptr<std::byte> memory = slots_.allocate(bytes);
  const fabric::Place place = slots_.find(memory.get(), bytes).value();
  const std::uint64_t inlet = inlet_of(slots_, slot_inlets_, memory.get(), place);
  return {std::move(memory), bytes, {inlet, place.offset}};
}

std::optional<wire::InletPlace> Partner::open_in(const fabric::Pool& pool, const std::byte* data,
                                                 std::size_t bytes) {
  const auto place = pool.find(data, bytes);
  if (!place) return std::nullopt;
  return wire::InletPlace{inlet_of(pool, pool_inlets_, data, *place), place->offset};
}

wire::InletPlace Partner::open_once(std::span<std::byte> memory) {
  return {inlets_.open_inlet(*peer_, memory, nullptr), 0};
}

void Partner::close_once(const wire::InletPlace& place) {
  if (!lost_ && place.inlet != 0 && peer_->up()) inlets_.close_inlet(*peer_, place.inlet);
}

void Partner::trim() {
  slots_.trim();
  std::erase_if(slot_inlets_, [this](const auto& entry) {
    if (slots_.has(entry.first)) return false;
    close_once({entry.second, 0});
    wire::Message message(wire::Kind::inlet_closed);
    message.put(wire::InletClosed{entry.second});
    send(message.bytes());
    return true;
  });
}

const fabric::SharedInlet& Partner::peer_inlet(std::uint64_t number) {
  const auto known = peer_inlets_.find(number);
  if (known != peer_inlets_.end()) return known->second;
  return peer_inlets_.emplace(number, inlets_.inlet(*peer_, number)).first->second;
}

std::byte* Partner::peer_memory(const wire::InletPlace& place, std::size_t bytes) {
  if (!shares_memory_) return nullptr;
  const fabric::SharedInlet& inlet = peer_inlet(place.inlet);
  if (inlet.memory == nullptr || place.offset > inlet.bytes || bytes > inlet.bytes - place.offset) {
    throw Error(Code::failed, "it names memory that it has not opened");
  }
  return inlet.memory.get() + place.offset;
}

std::atomic<std::uint64_t>* Partner::peer_word(const wire::InletPlace& place) {
  std::byte* const memory = peer_memory(place, sizeof(std::uint64_t));
  if (place.offset % sizeof(std::uint64_t) != 0) {
    throw Error(Code::failed, "it names a word that is not aligned");
  }
  return reinterpret_cast<std::atomic<std::uint64_t>*>(memory);
}

void Partner::write(const wire::InletPlace& place, std::span<const std::byte> bytes) {
  if (lost_ || !peer_->up() || bytes.empty()) return;
  inlets_.write(*peer_, place.inlet, place.offset, bytes);
}

}  // namespace tensorbus::push_pull
