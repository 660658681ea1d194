#include "fabric/ucx/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/bytes.h"

namespace tensorbus::fabric::ucx {
namespace {

constexpr std::uint32_t magic = 0x58554254;  // "TBUX"
constexpr std::size_t max_address_bytes = 4096;
constexpr std::size_t max_name_bytes = 1024;
constexpr std::size_t max_text_bytes = 4096;
constexpr Code last_code = Code::withdrawn;

Error broken(const std::string& what) { return Error(Code::failed, what); }

std::string short_string(Decoder& decoder, std::size_t most, std::string_view what) {
  const std::string_view text = decoder.string();
  if (text.size() > most) throw broken(fmt::format("{} of {} bytes", what, text.size()));
  return std::string(text);
}

void put(Encoder& encoder, const Id16& id) { encoder.raw(view(id)); }

Id16 take_id(Decoder& decoder) {
  Id16 id;
  std::ranges::copy(decoder.raw(id.size()), id.begin());
  return id;
}

void put(Encoder& encoder, const Identity& identity) {
  encoder.string(identity.host).integer(identity.pid).integer(identity.start_time);
  put(encoder, identity.id);
  encoder.string(std::string_view(identity.name).substr(0, max_name_bytes));
}

Identity take_identity(Decoder& decoder) {
  Identity identity;
  identity.host = short_string(decoder, max_name_bytes, "a host key");
  identity.pid = decoder.integer<std::int64_t>();
  identity.start_time = decoder.integer<std::uint64_t>();
  identity.id = take_id(decoder);
  identity.name = short_string(decoder, max_name_bytes, "a name");
  return identity;
}

// Bodies that are numbers only: calls `each` with one after the other.
template <typename Ask_, typename Each>
requires std::is_same_v<std::remove_const_t<Ask_>, Ask>
void for_numbers(Ask_& ask, Each each) {
  each(ask.region), each(ask.stream_number), each(ask.ticket);
  each(ask.wire_bytes), each(ask.chunk_bytes), each(ask.window);
}
template <typename Swap, typename Each>
requires std::is_same_v<std::remove_const_t<Swap>, SwapRequest>
void for_numbers(Swap& swap, Each each) {
  each(swap.region), each(swap.ticket), each(swap.word);
  each(swap.expected), each(swap.desired);
}

template <typename Body>
std::string encode_numbers(const Body& body) {
  Encoder encoder;
  for_numbers(body, [&](auto number) { encoder.integer(number); });
  return std::move(encoder).bytes();
}

template <typename Body>
Body decode_numbers(std::string_view bytes) {
  Decoder decoder(bytes);
  Body body;
  for_numbers(body, [&]<typename Number>(Number& number) { number = decoder.integer<Number>(); });
  decoder.end();
  return body;
}

}  // namespace

FrameBytes encode(const Frame& frame) noexcept {
  FrameBytes bytes;
  std::byte* at = bytes.data();
  const auto put_integer = [&at](auto value) {
    std::memcpy(at, &value, sizeof value);
    at += sizeof value;
  };
  put_integer(magic);
  put_integer(wire_version);
  put_integer(static_cast<std::uint16_t>(frame.kind));
  put_integer(frame.stream);
  put_integer(frame.sequence);
  put_integer(frame.number);
  put_integer(frame.index);
  return bytes;
}

Frame decode_frame(std::span<const std::byte> bytes) {
  if (bytes.size() != frame_bytes) throw broken(fmt::format("a frame of {} bytes", bytes.size()));
  Decoder decoder({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (decoder.integer<std::uint32_t>() != magic) throw broken("a frame that is not ours");
  const auto version = decoder.integer<std::uint16_t>();
  if (version != wire_version) {
    throw broken(fmt::format("protocol version {}, ours is {}; use the same release on both sides",
                             version, wire_version));
  }
  const auto kind = decoder.integer<std::uint16_t>();
  if (kind == 0 || kind > last_kind) throw broken(fmt::format("a message of kind {}", kind));
  Frame frame;
  frame.kind = static_cast<Kind>(kind);
  frame.stream = decoder.integer<std::uint64_t>();
  frame.sequence = decoder.integer<std::uint64_t>();
  frame.number = decoder.integer<std::uint64_t>();
  frame.index = decoder.integer<std::uint64_t>();
  return frame;
}

std::string encode(const Hello& hello) {
  Encoder encoder;
  encoder.integer(hello.stream);
  put(encoder, hello.nonce);
  put(encoder, hello.identity);
  put(encoder, hello.expected);
  encoder.string(hello.address);
  return std::move(encoder).bytes();
}

Hello decode_hello(std::string_view body) {
  Decoder decoder(body);
  Hello hello;
  hello.stream = decoder.integer<std::uint64_t>();
  hello.nonce = take_id(decoder);
  hello.identity = take_identity(decoder);
  hello.expected = take_id(decoder);
  hello.address = short_string(decoder, max_address_bytes, "a worker address");
  decoder.end();
  if (hello.stream == 0) throw broken("a hello without a stream");
  if (hello.address.empty()) throw broken("a hello without an address");
  return hello;
}

std::string encode(const Welcome& welcome) {
  Encoder encoder;
  encoder.integer(welcome.stream);
  put(encoder, welcome.nonce);
  put(encoder, welcome.identity);
  encoder.string(welcome.proof);
  return std::move(encoder).bytes();
}

Welcome decode_welcome(std::string_view body) {
  Decoder decoder(body);
  Welcome welcome;
  welcome.stream = decoder.integer<std::uint64_t>();
  welcome.nonce = take_id(decoder);
  welcome.identity = take_identity(decoder);
  welcome.proof = short_string(decoder, proof_size, "a proof");
  decoder.end();
  if (welcome.stream == 0) throw broken("a welcome without a stream");
  return welcome;
}

std::string encode(const Ask& ask) { return encode_numbers(ask); }
Ask decode_ask(std::string_view body) { return decode_numbers<Ask>(body); }

std::string encode(const SwapRequest& request) { return encode_numbers(request); }
SwapRequest decode_swap(std::string_view body) { return decode_numbers<SwapRequest>(body); }

std::string encode(const Status& status) {
  Encoder encoder;
  encoder.integer(static_cast<std::uint8_t>(status.code));
  encoder.string(std::string_view(status.message).substr(0, max_text_bytes));
  return std::move(encoder).bytes();
}

Status decode_status(std::string_view body) {
  Decoder decoder(body);
  const auto code = decoder.integer<std::uint8_t>();
  if (code > static_cast<std::uint8_t>(last_code)) {
    throw broken(fmt::format("an unknown code {}", code));
  }
  Status status{static_cast<Code>(code), short_string(decoder, max_text_bytes, "a text")};
  decoder.end();
  return status;
}

std::string prove(const std::string& secret, Role role, const Hello& hello,
                  const Welcome& welcome) {
  Welcome without_proof = welcome;
  without_proof.proof.clear();
  Encoder text;
  text.integer(static_cast<std::uint8_t>(role)).string(encode(hello)).string(encode(without_proof));
  return proof_of(secret, text.bytes());
}

}  // namespace tensorbus::fabric::ucx
