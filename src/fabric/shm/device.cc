// Asks for what lies on a device, which wait for it, and windows in device memory.
#include <algorithm>

#include "base/bytes.h"
#include "fabric/shm/answer.h"
#include "fabric/shm/core.h"

namespace tensorbus::fabric {
namespace {

// The name; empty: there is none.
std::string window_body(const device::Window& window) {
  Encoder encoder;
  encoder.string(window.state() == device::Window::State::ready ? window.name() : "");
  return std::move(encoder).bytes();
}

}  // namespace

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
  if (own.packer == nullptr) return false;
  return std::any_of(asks_.begin(), asks_.begin() + static_cast<std::ptrdiff_t>(index),
                     [&](const WaitingAsk& each) {
                       return each.packer == own.packer && slot_in(each) == slot_in(own);
                     });
}

bool ShmCore::serve(WaitingAsk& waiting, bool may_begin) {
  const PeerPtr& peer = waiting.peer;
  const Ask& ask = waiting.ask;
  const auto& exposed = waiting.exposed;
  const auto& packer = waiting.packer;
  try {
    if (packer == nullptr) {
      if (!waiting.copies.over()) return false;
      answer_packed(*peer, ask, *exposed, waiting.blocks->program());
      return true;
    }
    if (!waiting.begun) {
      if (!may_begin || !packer->ready(ask.chunk)) return false;
      packer->begin(ask.chunk);
      waiting.begun = true;
    }
    if (!packer->ready(ask.chunk)) return false;
    packer->pack(ask.chunk, host_slot_of(*peer, ask), *options_.crew);
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

// The reader can have a window; whether this stream goes through it is seen when it is asked for.
void ShmCore::on_want_device_window(const PeerPtr& peer, std::string_view body) {
  Decoder decoder(body);
  const auto found = regions_.find(decoder.integer<std::uint64_t>());
  decoder.end();
  ShmPeer::DeviceWindow& window = peer->device_window;
  if (window.memory != nullptr) throw Error(Code::failed, "it wants a second device window");
  if (found != regions_.end() && found->second->memory.on_device()) {
    const auto& copiers = found->second->memory.copiers;
    const auto first = std::ranges::find_if(copiers, [](auto* each) { return each != nullptr; });
    if (first != copiers.end()) {
      window.memory = (*first)->device().make_window(device_window_bytes);
    }
  }
  if (window.memory == nullptr) {
    return peer->push(device_window_message, std::move(Encoder().string("")).bytes());
  }
  device_windows_come_ = true;
  tell_of_device_windows();
}

void ShmCore::tell_of_device_windows() {
  device_windows_come_ = false;
  for (const auto& [serial, peer] : peers_) {
    ShmPeer::DeviceWindow& window = peer->device_window;
    if (window.memory == nullptr || window.told) continue;
    if (window.memory->state() == device::Window::State::asked_for) {
      device_windows_come_ = true;
      continue;
    }
    window.told = true;
    peer->push(device_window_message, window_body(*window.memory));
  }
}

void ShmCore::on_device_window(const PeerPtr& peer, std::string_view body) {
  using State = ShmPeer::PeerDeviceWindow::State;
  Decoder decoder(body);
  const std::string name(decoder.string());
  decoder.end();
  ShmPeer::PeerDeviceWindow& window = peer->peer_device_window;
  if (window.state != State::asked) throw Error(Code::failed, "it sent a window that none wanted");
  if (!name.empty()) window.memory = window.copier->device().open_window(name);
  window.state = window.memory != nullptr ? State::opening : State::refused;
  wake_reads(*peer);
}

void ShmCore::on_device_ask(const PeerPtr& peer, const Ask& ask) {
  const std::size_t slot = ask.slot - std::size_t{first_device_slot};
  const ShmPeer::DeviceWindow& window = peer->device_window;
  if (slot >= device_slots || window.memory == nullptr ||
      window.memory->state() != device::Window::State::ready) {
    throw Error(Code::failed, "it asks for a chunk without a window");
  }
  const auto found = regions_.find(ask.region);
  if (found == regions_.end() || !found->second->open(ask.ticket)) {
    return answer(*peer, ask, taken_back());
  }
  try {
    const std::shared_ptr<const DeviceBlocks> blocks = found->second->device_blocks(ask.stream);
    if (blocks == nullptr) {
      return answer(*peer, ask, {Code::unsupported, "the stream cannot go from device to device"});
    }
    const auto& chunks = blocks->program().chunks;
    if (ask.chunk >= chunks.size() || chunks[ask.chunk].wire_bytes > std::int64_t{slot_bytes}) {
      return answer(*peer, ask, {Code::invalid_argument, "the stream has no such chunk"});
    }
    WaitingAsk waiting{peer, ask, found->second, nullptr, true, window.memory};
    waiting.blocks = blocks;
    waiting.copies.add(blocks->copier().queue().copy(
        blocks->of_chunk(ask.chunk, window.memory->data() + slot * slot_bytes)));
    asks_.push_back(std::move(waiting));
  } catch (const Error& error) {
    answer(*peer, ask, error.status());
  }
}

}  // namespace tensorbus::fabric
