// A client's line to the agent that there is now, if there is one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bus/socket/frame_socket.h"
#include "bus/socket/greeting.h"
#include "bus/socket/protocol.h"
#include "os/io/poll.h"

namespace tensorbus::bus {

// No call blocks. The connection that owns the line has the mutex, except where a comment says
// otherwise.
class AgentLine {
 public:
  explicit AgentLine(Rank rank) : rank_(rank) {}

  bool up() const noexcept { return socket_ != nullptr; }
  // To be polled without the mutex; null if the line is down.
  std::shared_ptr<FrameSocket> socket() const noexcept { return socket_; }
  // Of the last agent. Any thread may ask, without the mutex.
  std::int64_t agent_pid() const noexcept { return agent_pid_.load(); }
  // Wakes the thread that looks after the line. Any thread may, without the mutex.
  os::EventFd& wake() noexcept { return wake_; }

  void adopt(Greeted agent);
  void drop() noexcept;
  // What cannot go out at once goes when the thread wakes up. Nothing happens while the line is
  // down.
  void send(const protocol::FromClient& message, std::vector<os::Fd> fds = {}) noexcept;
  void flush() noexcept;
  // Passes on everything that has come. The line is down afterwards if the agent is gone or says
  // what it must not.
  void receive(const std::function<void(protocol::FromAgent)>& take) noexcept;

 private:
  const Rank rank_;
  std::atomic<std::int64_t> agent_pid_{0};
  os::EventFd wake_;
  std::shared_ptr<FrameSocket> socket_;
};

}  // namespace tensorbus::bus
