#include "fabric/shm/handshake.h"

#include <unistd.h>

#include <algorithm>

#include "base/bytes.h"
#include "os/net/unix_socket.h"
#include "os/process/process.h"

namespace tensorbus::fabric {
namespace {

constexpr std::string_view magic = "tensorbus shm 1";

std::string encode_identity(const Identity& identity) {
  return encode(Address{identity, "shm", ""});
}

void write(Encoder& encoder, const Greeting& greeting) {
  encoder.string(encode_identity(greeting.self)).integer(greeting.probe).raw(view(greeting.nonce));
}

Greeting read_greeting(Decoder& decoder) {
  Greeting greeting;
  greeting.self = decode_address(decoder.string()).identity;
  greeting.probe = decoder.integer<std::uint64_t>();
  std::ranges::copy(decoder.raw(greeting.nonce.size()), greeting.nonce.begin());
  return greeting;
}

Decoder after_magic(std::string_view bytes) {
  Decoder decoder(bytes);
  if (decoder.string() != magic) {
    throw Error(Code::failed, "the other side speaks another version of the shm protocol");
  }
  return decoder;
}

}  // namespace

std::string packet(PacketKind kind, std::string_view body) {
  std::string bytes(1, static_cast<char>(kind));
  bytes.append(body);
  return bytes;
}

std::string encode(const Greeting& greeting) {
  Encoder encoder;
  encoder.string(magic);
  write(encoder, greeting);
  return std::move(encoder).bytes();
}

std::string encode(const Hello& hello) {
  Encoder encoder;
  encoder.string(magic);
  write(encoder, hello.from);
  encoder.string(encode_identity(hello.to));
  return std::move(encoder).bytes();
}

Greeting decode_greeting(std::string_view bytes) {
  Decoder decoder = after_magic(bytes);
  Greeting greeting = read_greeting(decoder);
  decoder.end();
  return greeting;
}

Hello decode_hello(std::string_view bytes) {
  Decoder decoder = after_magic(bytes);
  Hello hello;
  hello.from = read_greeting(decoder);
  hello.to = decode_address(decoder.string()).identity;
  decoder.end();
  return hello;
}

std::string connector_proof(std::string_view secret, std::string_view hello,
                            std::string_view challenge) {
  return proof_of(secret, "tensorbus shm connector" + std::string(hello) + std::string(challenge));
}

std::string acceptor_proof(std::string_view secret, std::string_view hello,
                           std::string_view challenge) {
  return proof_of(secret, "tensorbus shm acceptor" + std::string(hello) + std::string(challenge));
}

std::string encode(const Status& status) {
  Encoder encoder;
  encoder.integer(static_cast<std::uint8_t>(status.code)).string(status.message);
  return std::move(encoder).bytes();
}

Status decode_status(std::string_view bytes) {
  Decoder decoder(bytes);
  const auto code = decoder.integer<std::uint8_t>();
  // A code that is not known here is an error all the same.
  const bool known = code > 0 && code <= static_cast<std::uint8_t>(Code::withdrawn);
  Status status{known ? static_cast<Code>(code) : Code::failed, std::string(decoder.string())};
  decoder.end();
  return status;
}

pid_t check_credentials(const os::Fd& socket) {
  const os::Credentials found = os::peer_credentials(socket);
  if (found.uid != ::geteuid() || found.uid == os::overflow_uid()) {
    throw Error(Code::denied, "the process at the other end runs as user " +
                                  std::to_string(found.uid) + ", this one as " +
                                  std::to_string(::geteuid()) +
                                  "; shared memory is for processes of one user");
  }
  return found.pid;
}

void check_identity(pid_t pid, const Identity& claimed) {
  if (pid == 0 || os::process_start_time(pid) == claimed.start_time) return;
  throw Error(Code::invalid_argument, "process " + std::to_string(pid) + " is not " +
                                          to_string(claimed) +
                                          ", which started at another time: the address is stale");
}

}  // namespace tensorbus::fabric
