// How two processes of one host come to trust each other: packets on a Unix socket, and what each
// side checks. Pure but for the credentials of the socket.
//
//   connector                                acceptor
//   hello: who I am, whom I look for, nonce ->
//                                         <- challenge: who I am, nonce   (or refusal)
//   proof, memory of the connection       ->
//                                         <- proof, doorbell              (or refusal)
//   doorbell                              ->
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "fabric/core/identity.h"
#include "os/io/fd.h"
#include "tensorbus/status.h"

namespace tensorbus::fabric {

// The first byte of every packet on the socket.
enum class PacketKind : std::uint8_t {
  hello = 1,
  challenge = 2,
  proof = 3,
  accept = 4,
  refuse = 5,
  // Of a connection that is up.
  attach = 6,
  segment = 7,
  table = 8,
  no_region = 9,
  want_window = 10,
  window = 11,
  bye = 12,
  inlet = 13,
  inlet_closed = 14,
  lender = 15,
  segment_gone = 16,
};
std::string packet(PacketKind kind, std::string_view body);

struct Greeting {
  Identity self;
  // Where the sender's id lies in its memory: a process that can read the id there may read the
  // rest.
  std::uint64_t probe = 0;
  Id16 nonce{};
};
struct Hello {
  Greeting from;
  Identity to;
};

std::string encode(const Greeting& greeting);
std::string encode(const Hello& hello);
// Error(failed) for bytes that are no packet.
Greeting decode_greeting(std::string_view bytes);
Hello decode_hello(std::string_view bytes);

std::string connector_proof(std::string_view secret, std::string_view hello,
                            std::string_view challenge);
std::string acceptor_proof(std::string_view secret, std::string_view hello,
                           std::string_view challenge);

std::string encode(const Status& status);
Status decode_status(std::string_view bytes);

// The pid of the other end as this process sees it, 0 if it lives in another pid namespace.
// Error(denied) unless the other process runs as the same user.
pid_t check_credentials(const os::Fd& socket);

// Error(invalid_argument) if a process that we can see is not the one that was meant.
void check_identity(pid_t pid, const Identity& claimed);

}  // namespace tensorbus::fabric
