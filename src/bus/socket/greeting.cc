#include "bus/socket/greeting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "bus/files/heartbeat.h"
#include "bus/socket/channel.h"
#include "os/net/unix_socket.h"

namespace tensorbus::bus {
namespace {

constexpr Duration shortest_retry = std::chrono::milliseconds(20);
constexpr Duration longest_retry = std::chrono::milliseconds(500);

// An answer of an agent that is not this client's.
class Rejection : public Error {
 public:
  explicit Rejection(const std::string& why) : Error(Code::unreachable, why) {}
};

Greeted try_to_greet(const SocketConnectionOptions& options, std::uint64_t session,
                     const os::EventFd& wake, Deadline deadline) {
  const std::string path = socket_path(options.queue_path);
  auto socket = std::make_unique<FrameSocket>(os::connect_unix_path(path));
  const os::Credentials peer = os::peer_credentials(socket->socket());
  if (peer.uid != ::geteuid()) {
    throw Rejection(fmt::format("{} belongs to user {}, not to us (user {}); give another path",
                                path, peer.uid, ::geteuid()));
  }
  socket->send({protocol::encode(protocol::Hello{protocol::version, options.space, options.rank,
                                                 session, ::getpid()}),
                {}});
  while (true) {
    if (std::optional<Frame> frame = socket->receive()) {
      const protocol::FromAgent answer = protocol::decode_from_agent(frame->bytes);
      if (const auto* rejected = std::get_if<protocol::Rejected>(&answer)) {
        throw Rejection(path + ": " + rejected->reason.message);
      }
      const auto* welcome = std::get_if<protocol::Welcome>(&answer);
      if (welcome == nullptr) throw Error(Code::failed, path + " is not served by an agent");
      return {std::move(socket), *welcome};
    }
    if (socket->closed()) throw Error(Code::unreachable, "the agent ended while it was greeted");
    pollfd ready[] = {{socket->socket().get(), POLLIN, 0}, {wake.get(), POLLIN, 0}};
    if (!os::wait_ready(ready, deadline)) {
      throw Error(Code::timeout, "an agent listens at " + path + " but does not answer");
    }
    if (ready[1].revents != 0) throw Error(Code::cancelled, "the client was closed");
  }
}

}  // namespace

Greeted greet_agent(const SocketConnectionOptions& options, std::uint64_t session,
                    const os::EventFd& wake, const std::atomic<bool>& closed, bool returning,
                    Deadline deadline) {
  Duration pause = shortest_retry;
  while (true) {
    std::string found;
    try {
      return try_to_greet(options, session, wake, deadline);
    } catch (const Rejection& rejection) {
      if (!returning) throw;
      found = rejection.what();
    } catch (const Error& error) {
      if (error.code() != Code::unreachable && error.code() != Code::timeout) throw;
      found = error.what();
    }
    if (deadline.expired() || closed) throw unreachable_agent(options, found);
    pollfd woken{wake.get(), POLLIN, 0};
    os::wait_ready({&woken, 1}, sooner(deadline, Deadline::after(pause)));
    pause = std::min(2 * pause, longest_retry);
  }
}

Error unreachable_agent(const SocketConnectionOptions& options, const std::string& found) {
  return {Code::unreachable,
          fmt::format("agent {} cannot be reached: {}. {} Is `tensorbus agent --rank {}` running, "
                      "and are AGENT_RANK and TENSOR_BUS_COMMAND_QUEUE_PATH right?",
                      options.rank, found, describe_heartbeat(options.state_path), options.rank)};
}

}  // namespace tensorbus::bus
