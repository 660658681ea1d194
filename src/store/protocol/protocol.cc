#include "store/protocol/protocol.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>

namespace tensorbus::store {

std::string encode(const Hello& hello) {
  Encoder encoder;
  encoder.raw(hello_magic).integer(hello.version).integer(hello.flags);
  encoder.raw(view(hello.id)).raw(view(hello.nonce));
  return std::move(encoder).bytes();
}

Hello decode_hello(std::string_view bytes) {
  Decoder decoder(bytes);
  if (decoder.raw(hello_magic.size()) != hello_magic) {
    throw Error(Code::failed, "the other side does not speak the tensorbus protocol");
  }
  Hello hello;
  hello.version = decoder.integer<std::uint16_t>();
  hello.flags = decoder.integer<std::uint16_t>();
  std::ranges::copy(decoder.raw(hello.id.size()), hello.id.begin());
  std::ranges::copy(decoder.raw(hello.nonce.size()), hello.nonce.begin());
  decoder.end();
  return hello;
}

std::string token_proof(const std::string& token, bool of_server, const Hello& client,
                        const Hello& server) {
  // Both hellos are in the text, so a proof fits one connection; the first word keeps a server's
  // proof from being sent back to the server as a client's.
  const std::string text =
      (of_server ? "tensorbus server" : "tensorbus client") + encode(client) + encode(server);
  return proof_of(token, text);
}

std::string this_process() {
  static const Id16 drawn = random_id();
  // A fork has the same.
  return std::string(view(drawn)) + std::to_string(::getpid());
}

std::string encode_frame(std::uint64_t id, std::uint8_t op_or_code, std::string_view body) {
  Encoder encoder;
  encoder.integer(static_cast<std::uint32_t>(body.size() + frame_header_size - 4));
  encoder.integer(id).integer(op_or_code).raw(body);
  return std::move(encoder).bytes();
}

std::string keys_body(std::span<const std::string> keys) {
  Encoder encoder;
  encoder.integer(static_cast<std::uint32_t>(keys.size()));
  for (const std::string& key : keys) encoder.string(key);
  return std::move(encoder).bytes();
}

std::vector<std::string_view> read_keys(Decoder& body) {
  std::vector<std::string_view> keys(body.count(4));
  for (std::string_view& key : keys) key = body.string();
  return keys;
}

std::string set_body(std::span<const Entry> entries, std::uint64_t lease) {
  Encoder encoder;
  encoder.integer(lease).integer(static_cast<std::uint32_t>(entries.size()));
  for (const Entry& entry : entries) encoder.string(entry.key).string(entry.value);
  return std::move(encoder).bytes();
}

std::string condition_body(const Condition& condition) {
  // Candidates stay behind: the server sees all keys and needs no hint.
  Encoder encoder;
  encoder.string(condition.key).integer(static_cast<std::uint8_t>(condition.is_pattern));
  encoder.integer(static_cast<std::uint64_t>(condition.count));
  encoder.integer(static_cast<std::uint8_t>(condition.value.has_value()));
  encoder.string(condition.value.value_or(""));
  return std::move(encoder).bytes();
}

Condition read_condition(Decoder& body) {
  Condition condition;
  condition.key = body.string();
  condition.is_pattern = body.integer<std::uint8_t>() != 0;
  condition.count = body.integer<std::uint64_t>();
  const bool has_value = body.integer<std::uint8_t>() != 0;
  const std::string_view value = body.string();
  if (has_value) condition.value = value;
  return condition;
}

std::uint64_t fingerprint(std::string_view value) {
  return XXH3_64bits(value.data(), value.size());
}

void write(Encoder& reply, const WatchedKey& watched) {
  reply.string(watched.key).integer(watched.revision).integer(watched.fingerprint);
  reply.string(watched.value);
}

std::vector<WatchedKey> read_watched_keys(Decoder& reply) {
  std::vector<WatchedKey> keys(reply.count(24));
  for (WatchedKey& watched : keys) {
    watched.key = reply.string();
    watched.revision = reply.integer<std::uint64_t>();
    watched.fingerprint = reply.integer<std::uint64_t>();
    watched.value = reply.string();
  }
  return keys;
}

std::string encode(const StoreEvent& event) {
  Encoder encoder;
  encoder.integer(static_cast<std::uint8_t>(event.kind)).integer(event.revision);
  encoder.string(event.key).string(event.value);
  return std::move(encoder).bytes();
}

StoreEvent decode_event(Decoder& body) {
  StoreEvent event;
  const auto kind = body.integer<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(StoreEvent::Kind::erase)) {
    throw Error(Code::failed, "an event of unknown kind");
  }
  event.kind = static_cast<StoreEvent::Kind>(kind);
  event.revision = body.integer<std::uint64_t>();
  event.key = body.string();
  event.value = body.string();
  return event;
}

}  // namespace tensorbus::store
