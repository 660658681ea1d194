// Our wire protocol: what the native client says and the server understands. The journal holds the
// same requests, so that a restarted server replays what it was told.
//
//   client hello   "TBUS" u16 version  u16 0      session[16] nonce[16]
//   server hello   "TBUS" u16 version  u16 flags  instance[16] nonce[16]
//   if flags say that a token is asked for:
//     client       proof[32]          server  proof[32], or it closes
//   request        u32 size  u64 id  u8 op    body
//   reply          u32 size  u64 id  u8 code  body (a message when code is not ok)
//   a reply to 0   is to nobody: "cancelled" is the farewell of a server that was told to stop, and
//                  names the server's process
//
// Ids grow; together with the session they name a request for ever, so that a request sent again
// after a reconnect is applied once. Changing requests, and barriers likewise, start with the
// lowest id of their kind that still waits for its reply: the server forgets the replies below that
// id. Changes and barriers count apart, so that a thread that stands before a barrier for hours
// does not make the server remember the sets of others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/secret.h"
#include "tensorbus/store.h"

namespace tensorbus::store {

inline constexpr std::string_view hello_magic = "TBUS";
inline constexpr std::uint16_t protocol_version = 1;
inline constexpr std::uint16_t flag_token = 1;
inline constexpr std::size_t hello_size = 4 + 2 + 2 + 16 + 16;
inline constexpr std::size_t frame_header_size = 4 + 8 + 1;
// Beyond the largest single value there is room for batches; a larger batch is refused.
inline constexpr std::size_t max_frame_size = 64 * 1024 * 1024;

enum class Op : std::uint8_t {
  get = 1,
  exists = 2,
  list = 3,
  // The next operations block: the reply comes when the condition holds, or on cancel.
  wait = 4,
  wait_all = 5,  // of torch's clients only
  barrier = 6,
  // The reply lists the present keys; events follow under the same id until cancel.
  watch = 7,
  cancel = 8,
  // Of keys: how long their leases live, and how long they have left.
  lease_times = 9,
  // The next operations change the store.
  set = 16,
  add = 17,
  swap = 18,
  erase = 19,
  append = 20,
  push = 21,
  pop = 22,
  grant = 23,
  refresh = 24,
  revoke = 25,
  // A lease and its keys, for a server that has lost both; a server that has not does nothing.
  publish = 26,
  // The next operations stand in the journal only.
  expire = 32,
  finished = 33,
  restore_key = 34,
  restore_queue = 35,
  restore_revision = 36,
};

constexpr bool is_change(Op op) { return op >= Op::set && op <= Op::publish; }
constexpr bool is_blocking(Op op) { return op >= Op::wait && op <= Op::watch; }

// In a reply's code byte: not an answer but one event of a watch.
inline constexpr std::uint8_t event_code = 0xFF;

struct Hello {
  std::uint16_t version = protocol_version;
  std::uint16_t flags = 0;
  Id16 id{};  // the client's session, or the server's instance
  Id16 nonce{};
};
std::string encode(const Hello& hello);
// Throws Error(failed) if the bytes are no hello of ours.
Hello decode_hello(std::string_view bytes);

// What a side must compute to show that it knows the token.
std::string token_proof(const std::string& token, bool of_server, const Hello& client,
                        const Hello& server);

// A name that no other process has: a client that knows the name of its server's process knows who
// ended the server.
std::string this_process();

std::string encode_frame(std::uint64_t id, std::uint8_t op_or_code, std::string_view body);

// Request bodies, written by clients and read by the engine.
std::string keys_body(std::span<const std::string> keys);
std::vector<std::string_view> read_keys(Decoder& body);
std::string set_body(std::span<const Entry> entries, std::uint64_t lease);
std::string condition_body(const Condition& condition);
Condition read_condition(Decoder& body);

// One key in the reply to a watch. The fingerprint stands for its value, which is sent only if it
// is newer than the revision that the watcher knows.
struct WatchedKey {
  std::string_view key;
  std::uint64_t revision = 0;
  std::uint64_t fingerprint = 0;
  std::string_view value;
};
std::uint64_t fingerprint(std::string_view value);
void write(Encoder& reply, const WatchedKey& watched);
std::vector<WatchedKey> read_watched_keys(Decoder& reply);

std::string encode(const StoreEvent& event);
StoreEvent decode_event(Decoder& body);

}  // namespace tensorbus::store
