#include "store/protocol/handshake.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace tensorbus::store {
namespace {

class Talk {
 public:
  Talk(const os::Fd& socket, Deadline deadline, const os::EventFd* abort)
      : socket_(socket), deadline_(deadline), abort_(abort) {}

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      } else {
        await(POLLOUT);
      }
    }
  }

  std::string receive(std::size_t size) {
    std::string bytes(size, '\0');
    for (std::size_t got = 0; got < size;) {
      const ssize_t count = ::recv(socket_.get(), bytes.data() + got, size - got, 0);
      if (count == 0) throw Error(Code::unreachable, "the server closed the connection");
      if (count > 0) {
        got += static_cast<std::size_t>(count);
      } else {
        await(POLLIN);
      }
    }
    return bytes;
  }

 private:
  // After a send or recv that failed: waits if the call would have blocked.
  void await(short events) {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      throw Error(Code::unreachable, os::errno_message("the server's greeting", errno));
    }
    std::array<pollfd, 2> descriptors{pollfd{socket_.get(), events, 0},
                                      pollfd{abort_ != nullptr ? abort_->get() : -1, POLLIN, 0}};
    if (!os::wait_ready(descriptors, deadline_)) {
      throw Error(Code::unreachable, "the server did not answer our hello in time");
    }
    if (descriptors[1].revents != 0) throw Error(Code::cancelled, "connecting was cancelled");
  }

  const os::Fd& socket_;
  const Deadline deadline_;
  const os::EventFd* abort_;
};

}  // namespace

Hello shake_hands(const os::Fd& socket, const Id16& session,
                  const std::optional<std::string>& token, Deadline deadline,
                  const os::EventFd* abort) {
  Talk talk(socket, deadline, abort);
  Hello client;
  client.id = session;
  client.nonce = random_id();
  talk.send(encode(client));
  const Hello server = decode_hello(talk.receive(hello_size));
  if (server.version != protocol_version) {
    throw Error(Code::failed,
                fmt::format("the server's protocol version is {}, ours is {}; use the same release "
                            "on both sides",
                            server.version, protocol_version));
  }
  if ((server.flags & flag_token) == 0) {
    if (!token) return server;
    // A process that takes the server's place would only have to leave the question out.
    throw Error(Code::denied,
                "the server asks for no token although we have one, so it need not be the one it "
                "seems to be; start it with the token, or connect without (TENSORBUS_TOKEN)");
  }
  if (!token) {
    throw Error(Code::denied, "the server asks for a token; pass it or set TENSORBUS_TOKEN");
  }
  talk.send(token_proof(*token, false, client, server));
  std::string proof;
  try {
    proof = talk.receive(proof_size);
  } catch (const Error& error) {
    if (error.code() != Code::unreachable) throw;
    throw Error(Code::denied,
                "the server refused our token; it must be the one it was started with");
  }
  const std::string expected = token_proof(*token, true, client, server);
  if (!proofs_equal(proof, expected)) {
    throw Error(Code::denied, "the server does not know the token itself; it is not to be trusted");
  }
  return server;
}

}  // namespace tensorbus::store
