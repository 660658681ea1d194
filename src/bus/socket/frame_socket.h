// Frames of any size, with descriptors, over a packet socket that takes 64 KiB at a time.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "os/io/fd.h"
#include "os/net/unix_socket.h"

namespace tensorbus::bus {

struct Frame {
  std::string bytes;
  std::vector<os::Fd> fds;
};

// No call blocks. One thread at a time.
class FrameSocket {
 public:
  explicit FrameSocket(os::Fd socket) : socket_(std::move(socket)) {}

  const os::Fd& socket() const noexcept { return socket_; }

  // Goes out now as far as the socket takes it, the rest with flush().
  void send(Frame frame);
  void flush();
  bool wants_write() const noexcept { return !queued_.empty() && !closed_; }

  // The next whole frame, if it is there. Throws Error for a frame that is too large.
  std::optional<Frame> receive();
  // The other end is gone: nothing more comes or goes.
  bool closed() const noexcept { return closed_; }

 private:
  struct Packet {
    std::string bytes;
    std::vector<os::Fd> fds;
  };

  os::Fd socket_;
  std::deque<Packet> queued_;
  Frame incoming_;
  os::Packet received_;
  bool closed_ = false;
};

}  // namespace tensorbus::bus
