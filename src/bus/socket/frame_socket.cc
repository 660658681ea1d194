#include "bus/socket/frame_socket.h"

#include <algorithm>
#include <iterator>

#include "tensorbus/status.h"

namespace tensorbus::bus {
namespace {

constexpr std::size_t packet_bytes = 60'000;
constexpr std::size_t most_frame_bytes = 256 * 1024 * 1024;
constexpr std::size_t most_frame_fds = 16 * 1024;
// The first byte of a packet.
constexpr char last_part = 0;
constexpr char more_follow = 1;

}  // namespace

void FrameSocket::send(Frame frame) {
  std::string_view rest = frame.bytes;
  auto next_fd = std::make_move_iterator(frame.fds.begin());
  const auto end_fd = std::make_move_iterator(frame.fds.end());
  do {
    Packet packet;
    const std::string_view part = rest.substr(0, packet_bytes);
    rest.remove_prefix(part.size());
    const auto fds = std::min<std::ptrdiff_t>(end_fd - next_fd, os::most_passed_fds);
    packet.fds.assign(next_fd, next_fd + fds);
    next_fd += fds;
    packet.bytes.push_back(rest.empty() && next_fd == end_fd ? last_part : more_follow);
    packet.bytes.append(part);
    queued_.push_back(std::move(packet));
  } while (!rest.empty() || next_fd != end_fd);
  flush();
}

void FrameSocket::flush() {
  while (wants_write()) {
    const Packet& packet = queued_.front();
    std::vector<int> fds;
    for (const os::Fd& fd : packet.fds) fds.push_back(fd.get());
    switch (os::send_packet(socket_, packet.bytes, fds)) {
      case os::PacketResult::done:
        queued_.pop_front();
        break;
      case os::PacketResult::would_block:
        return;
      case os::PacketResult::closed:
        closed_ = true;
        queued_.clear();
        return;
    }
  }
}

std::optional<Frame> FrameSocket::receive() {
  // What the other end sent before it went is still there when a send has failed.
  while (true) {
    switch (os::receive_packet(socket_, received_)) {
      case os::PacketResult::done:
        break;
      case os::PacketResult::would_block:
        return std::nullopt;
      case os::PacketResult::closed:
        closed_ = true;
        return std::nullopt;
    }
    const bool last = received_.bytes.front() == last_part;
    incoming_.bytes.append(received_.bytes, 1);
    std::move(received_.fds.begin(), received_.fds.end(), std::back_inserter(incoming_.fds));
    if (incoming_.bytes.size() > most_frame_bytes || incoming_.fds.size() > most_frame_fds) {
      throw Error(Code::invalid_argument, "a message is too large");
    }
    if (last) return std::exchange(incoming_, {});
  }
}

}  // namespace tensorbus::bus
