// What our active messages hold. Every message is a frame, sent as UCX's user header, and a body.
// Pure: bytes in, values out; whatever is wrong with bytes from a peer is an Error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fabric/core/identity.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric::ucx {

inline constexpr std::uint16_t wire_version = 1;
// Frame and body stay inside one fragment of UCX's TCP transport (65,528 bytes): a longer message
// is assembled by UCX in an extra copy, at half the speed.
inline constexpr std::size_t max_body_bytes = 64'000;

// In parentheses what Frame::number and Frame::index mean.
enum class Kind : std::uint16_t {
  hello = 1,
  welcome,
  proof,
  ready,
  refused,  // body: status
  heartbeat,
  goodbye,  // body: status
  message,
  attach,       // (request, region)
  forms,        // (request, 1 if more follow) body: a piece of the encoded forms
  ask,          // (read)
  fragment,     // (read, position in the cut program)
  credit,       // (read, bytes that were taken out of the window)
  cancel_read,  // (read)
  served,       // (read) body: status; after the last fragment, or instead of the rest
  swap,         // (request)
  swapped,      // (request, what the word was) body: status
  failed,       // (request) body: status; answers attach
  write,        // (inlet, offset)
};
inline constexpr std::uint16_t last_kind = static_cast<std::uint16_t>(Kind::write);

struct Frame {
  Kind kind = Kind::heartbeat;
  std::uint64_t stream = 0;    // as its receiver numbered the connection; 0 in a hello
  std::uint64_t sequence = 0;  // from 1, without gaps
  std::uint64_t number = 0;
  std::uint64_t index = 0;
  friend bool operator==(const Frame&, const Frame&) = default;
};
inline constexpr std::size_t frame_bytes = 40;
using FrameBytes = std::array<std::byte, frame_bytes>;

FrameBytes encode(const Frame& frame) noexcept;
Frame decode_frame(std::span<const std::byte> bytes);

struct Hello {
  std::uint64_t stream = 0;  // what the answers must carry
  Id16 nonce{};
  Identity identity;
  Id16 expected{};      // Identity::id of who should answer
  std::string address;  // the caller's worker
};
struct Welcome {
  std::uint64_t stream = 0;
  Id16 nonce{};
  Identity identity;
  std::string proof;
};
// One window per read and source.
struct Ask {
  std::uint64_t region = 0;
  std::uint64_t stream_number = 0;
  std::uint64_t ticket = 0;
  std::int64_t wire_bytes = 0;  // of the stream as the reader computed it, and how it is cut
  std::int64_t chunk_bytes = 0;
  std::uint64_t window = 0;
};
struct SwapRequest {
  std::uint64_t region = 0;
  std::uint64_t ticket = 0;
  std::uint32_t word = 0;
  std::uint64_t expected = 0;
  std::uint64_t desired = 0;
};

std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const Ask& ask);
std::string encode(const SwapRequest& request);
// Long texts are cut: an error must fit into one message.
std::string encode(const Status& status);

Hello decode_hello(std::string_view body);
Welcome decode_welcome(std::string_view body);
Ask decode_ask(std::string_view body);
SwapRequest decode_swap(std::string_view body);
Status decode_status(std::string_view body);

// Shows knowledge of the secret for this one greeting. The role is part of the proof, so that a
// proof cannot be sent back to the one who made it.
enum class Role : std::uint8_t { caller = 1, answerer = 2 };
std::string prove(const std::string& secret, Role role, const Hello& hello, const Welcome& welcome);

}  // namespace tensorbus::fabric::ucx
