// What a peer that has asked for a chunk is told.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "fabric/shm/peer.h"

namespace tensorbus::fabric {

inline Status taken_back() { return {Code::withdrawn, "it took its memory back"}; }

inline void answer(ShmPeer& peer, const Ask& ask, const Status& status, std::uint64_t bytes = 0) {
  Encoder encoder;
  encoder.integer(ask.request).integer(static_cast<std::uint8_t>(status.code));
  encoder.string(status.message).integer(bytes);
  peer.push(packed_message, std::move(encoder).bytes());
}

// The gate may be that of another process, which does not wait for this one.
inline void answer_packed(ShmPeer& peer, const Ask& ask, const ShmExposed& exposed,
                          const plan::Program& program) {
  if (!exposed.gate.still_open(ask.ticket)) return answer(peer, ask, taken_back());
  answer(peer, ask, {}, static_cast<std::uint64_t>(program.chunks[ask.chunk].wire_bytes));
}

inline std::span<std::byte> host_slot_of(const ShmPeer& peer, const Ask& ask) {
  return {peer.window.data() + ask.slot * slot_bytes, slot_bytes};
}

}  // namespace tensorbus::fabric
