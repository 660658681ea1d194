#include "bus/socket/agent_line.h"

#include <sys/prctl.h>
#include <sys/socket.h>

#include <utility>

#include "base/log.h"
#include "os/process/fork.h"

namespace tensorbus::bus {

void AgentLine::adopt(Greeted agent) {
  agent_pid_ = agent.welcome.pid;
#ifdef PR_SET_PTRACER
  // Where Yama asks for it: this agent may read the memory of the client. Elsewhere there is no
  // such call.
  if (agent_pid_ > 0) ::prctl(PR_SET_PTRACER, agent_pid_.load(), 0, 0, 0);
#endif
  socket_ = std::move(agent.socket);
  os::close_in_children(socket_->socket().get());
}

void AgentLine::drop() noexcept {
  if (socket_ == nullptr) return;
  os::forget_in_children(socket_->socket().get());
  // A thread that polls the socket wakes up, and holds the socket until then.
  ::shutdown(socket_->socket().get(), SHUT_RDWR);
  socket_.reset();
}

void AgentLine::send(const protocol::FromClient& message, std::vector<os::Fd> fds) noexcept {
  if (socket_ == nullptr) return;
  try {
    socket_->send({protocol::encode(message), std::move(fds)});
    if (socket_->wants_write() || socket_->closed()) wake_.signal();
  } catch (const std::exception& error) {
    log::warn("agent {}: {}", rank_, error.what());
    drop();
    wake_.signal();
  }
}

void AgentLine::flush() noexcept {
  try {
    socket_->flush();
  } catch (const std::exception& error) {
    log::warn("agent {}: {}", rank_, error.what());
    drop();
  }
}

void AgentLine::receive(const std::function<void(protocol::FromAgent)>& take) noexcept {
  try {
    if (socket_ != nullptr) socket_->flush();
    while (socket_ != nullptr) {  // an answer that cannot be sent ends it
      const std::optional<Frame> frame = socket_->receive();
      if (!frame) break;
      take(protocol::decode_from_agent(frame->bytes));
    }
  } catch (const std::exception& error) {
    log::warn("agent {} is left: {}", rank_, error.what());
    drop();
  }
  if (socket_ != nullptr && socket_->closed()) drop();
}

}  // namespace tensorbus::bus
